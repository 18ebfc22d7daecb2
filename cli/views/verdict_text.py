"""Parts of an explanation as text, for terminal and HTML page."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from cli import time_format
from detector.model.text import compared_with

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cli.queries.verdict_history import VerdictRecord
    from detector.explain.explanation import Explanation


def compared(explained: Explanation) -> str:
    """The peers: `15 peers among 16 machines of task pretrain`."""
    task = explained.verdict.task
    named = task if task.startswith("task ") else f"task {task}"
    return f"{compared_with(explained.verdict.message, explained.peers)} of {named}"


def timeline(one: VerdictRecord, explained: Explanation) -> list[tuple[int, str]]:
    """Time (Unix ns) and text in order: onsets, events, last readings, verdicts, operator actions."""
    together: dict[int, list[str]] = {}
    for moved in explained.moved:
        direction = "up" if moved.effect > 0 else "down"
        together.setdefault(moved.onset // 10**9, []).append(f"{metric_name(moved.key)} {direction}")
    found = [
        (second * 10**9, f"differs from its peers from here on: {', '.join(ways)}") for second, ways in together.items()
    ]
    for event in explained.events:
        device = f" {event.device}" if event.device else ""
        found.append((event.time, f"event {event.code}{device} ({event.severity or 'info'}): {event.message}"))
    found += [(last, f"last reading of {device or table}") for table, device, last in explained.gone]
    found += [(said.time, f"{said.level}: {said.message}") for said in one.verdicts]
    found += one.actions
    if one.closed:
        found.append((one.closed, f"{one.outcome}: {one.closing_message}"))
    return sorted(found, key=lambda row: row[0])


def after(time: int, since: int) -> str:
    """A time relative to the onset: `+12 s`."""
    seconds = (time - since) / 1e9
    if abs(seconds) < 100:
        return f"{seconds:+.0f} s"
    return f"{'-' if seconds < 0 else '+'}{time_format.ago(abs(seconds))}"


def sign_words(sign: str) -> str:
    """An indicator as text: `power low`."""
    if sign.startswith(("event.", "gone.", "progress.")):
        table, _, rest = sign.partition(".")
        words = {"event": f"event {rest}", "gone": f"no more readings of {rest}"}
        return words.get(table) or f"progress of its ranks ({metric_name(rest)})"
    return f"{metric_name(sign[:-1])} {'high' if sign[-1] == '+' else 'low'}"


def metric_name(key: str) -> str:
    """The name of a metric in words; its key where the catalogue does not have it."""
    from store.schema.catalogue import METRICS

    metric = METRICS.get(key)
    return metric.help.split(":")[0].split(" (")[0].split(";")[0].split(",")[0] if metric else key


def figure(value: float, key: str) -> str:
    """A value with its unit; a dash where unknown."""
    from detector.model.text import quantity
    from store.schema.catalogue import METRICS

    return quantity(value, METRICS.get(key)).replace(" seconds", " s") if math.isfinite(value) else "–"


def hardware_words(hardware: Mapping[str, str]) -> str:
    """What names a GPU, in one line: `UUID GPU-5eed…, serial 1650031, PCI 0000:3b:00.0`."""
    from detector.alerts.text import HARDWARE

    return ", ".join(f"{word} {hardware[name]}" for name, word in HARDWARE.items() if name in hardware)


def runner_up_lines(explained: Explanation) -> list[str]:
    """The confidence: how far this machine exceeds the threshold by the verdict's metric, and the next candidates."""
    from detector.model.text import subject

    shift, others = explained.main_shift, explained.runners_up
    if shift is None or not others:
        return []
    near = ", ".join(
        f"{subject(other.machine, other.device)} at {abs(other.effect):.1f} ({figure(other.value, shift.key)})"
        for other in others
    )
    size = f"{abs(shift.effect):.1f} × the smallest significant difference in {metric_name(shift.key)}"
    return [f"confidence: {size}; next candidates: {near}"]
