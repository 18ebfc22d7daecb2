"""An explanation in words, as terminal and page alike say it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from cli import time_format

if TYPE_CHECKING:
    from cli.queries.verdict_history import Told
    from detector.explain.explanation import Explanation


def compared(explained: Explanation) -> str:
    """Beside whom: `11 machines of task pretrain`."""
    count, task = explained.peers, explained.verdict.task
    named = task if task.startswith("task ") else f"task {task}"
    return f"{count} machine{'s' * (count != 1)} of {named}"


def timeline(one: Told, explained: Explanation) -> list[tuple[int, str]]:
    """What happened when (Unix ns), in order: events, onsets, silences, words of the detector."""
    together: dict[int, list[str]] = {}
    for moved in explained.moved:
        together.setdefault(moved.onset // 10**9, []).append(f"{moved.key} {'up' if moved.effect > 0 else 'down'}")
    found = [(second * 10**9, f"unlike its peers from here on: {', '.join(ways)}") for second, ways in together.items()]
    for event in explained.events:
        device = f" {event.device}" if event.device else ""
        found.append((event.time, f"event {event.code}{device} ({event.severity or 'info'}): {event.message}"))
    found += [(last, f"last reading of {device or table}") for table, device, last in explained.gone]
    found += [(said.time, f"{said.level}: {said.message}") for said in one.said]
    found += one.orders
    if one.over:
        found.append((one.over, f"ok: {one.end}"))
    return sorted(found, key=lambda row: row[0])


def after(time: int, since: int) -> str:
    """A time as people compare it with the onset: `+12 s`."""
    seconds = (time - since) / 1e9
    if abs(seconds) < 100:
        return f"{seconds:+.0f} s"
    return f"{'-' if seconds < 0 else '+'}{time_format.ago(abs(seconds))}"


def sign_words(sign: str) -> str:
    """A sign for people: `gpu.power_watts low`."""
    if sign.startswith(("event.", "gone.", "progress.")):
        table, _, rest = sign.partition(".")
        return {"event": f"event {rest}", "gone": f"no more readings of {rest}"}.get(table, rest)
    return f"{sign[:-1]} {'high' if sign[-1] == '+' else 'low'}"


def figure(value: float, key: str) -> str:
    """A reading as people say it; a dash where it is not known."""
    from detector.model.text import quantity
    from store.schema.catalogue import METRICS

    return quantity(value, METRICS.get(key)).replace(" seconds", " s") if math.isfinite(value) else "–"


def runner_lines(explained: Explanation) -> list[str]:
    """In words, how near anybody else came by the metric that convicts."""
    from detector.model.text import subject

    mine, others = explained.main_shift, explained.runners_up
    if mine is None or not others:
        return []
    near = ", ".join(
        f"{subject(other.machine, other.device)} at {abs(other.effect):.1f} ({figure(other.value, mine.key)})"
        for other in others
    )
    size = f"{abs(mine.effect):.1f} times the least difference that counts"
    return [f"by {mine.key} this one stands at {size}; next come {near}"]
