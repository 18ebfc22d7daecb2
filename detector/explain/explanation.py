"""Explain a verdict from the store's readings around its onset: what moved, when, how far, compared with which peers.

This runs only when a person asks; the live detector stores no curves.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from detector.config import Config
from detector.explain.difference import GUARD_S, DifferenceInDifferences, MetricShift, RunnerUp, Times
from detector.explain.hang_report import HangReport, read_hang_report
from detector.explain.root_causes import Likely, likely
from detector.explain.zoom_view import Closeup, closeups
from detector.model.verdict import Verdict
from detector.timeseries.binned import read_history
from detector.timeseries.rows import rows_of
from detector.topology.maintenance import OPERATOR
from detector.topology.tasks import Tasks
from store.schema.catalogue import METRICS, TABLES
from store.schema.contract import ReadableStore
from store.schema.time import SECOND
from store.signed import ZOOM_CODE

BACK_S = (120.0, 600.0)
"""Least and most of the time before the onset that is looked at; between, twice the time until the verdict."""
AFTER_S = (120.0, 3600.0)
"""Least and most of the time since the onset that is looked at, if the fault lasts that long."""
MOST_MOVED = 24


@dataclass(frozen=True, slots=True)
class EventRow:
    """An event of the machine, or a word of NCCL's on its task."""

    time: int
    code: str
    device: str
    severity: str
    message: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """All that can be said about a verdict."""

    verdict: Verdict
    begin: int
    end: int
    """The time that was looked at, Unix ns."""
    peers: int
    """Other machines of the task."""
    moved: tuple[MetricShift, ...]
    """In order of onset."""
    runners_up: tuple[RunnerUp, ...]
    """By the metric of the verdict, the strongest first."""
    likely: Likely
    events: tuple[EventRow, ...]
    gone: tuple[tuple[str, str | None, int], ...]
    """Tables with readings that ended while those of the peers went on: table, device, time of the last reading."""
    hang: HangReport = field(default_factory=HangReport)
    closeups: tuple[Closeup, ...] = ()
    """The machine many times a second, where an agent was asked to look closer."""

    @property
    def main_shift(self) -> MetricShift | None:
        """The curve of the verdict's metric; None where it is no reading, or did not move by this measure."""
        mine = [moved for moved in self.moved if moved.key == self.verdict.metric]
        return next((moved for moved in mine if moved.device == self.verdict.device), mine[0] if mine else None)


def explain(
    store: ReadableStore, verdict: Verdict, over: int | None = None, config: Config | None = None
) -> Explanation:
    """Read the store around the onset; `over` (Unix ns) is when the verdict was cleared, if it was.

    Raises what the store raises.
    """
    config = config or Config()
    times = _times(store, verdict, over)
    team = _team(store, verdict)
    hang = read_hang_report(store, verdict, team, (times.since, times.end))
    ras = (EventRow(time, "ras", "", "info", words) for time, words in hang.ras_findings)
    events = (*_events(store, verdict, times), *ras)
    moved: list[MetricShift] = []
    gone: list[tuple[str, str | None, int]] = []
    runners: tuple[RunnerUp, ...] = ()
    for table in store.tables():
        if table in TABLES and not TABLES[table].compared:
            continue
        history = read_history(store, table, times.begin, times.end)
        if history is None:
            continue
        compared = DifferenceInDifferences(history, times, verdict, team, config)
        moved += compared.moved()
        gone += compared.gone()
        runners = runners or compared.runners_up()
    signs = _signs(verdict, moved, events, gone)
    moved = sorted(sorted(moved, key=lambda one: -abs(one.effect))[:MOST_MOVED], key=lambda one: one.onset)
    found = likely(signs)
    return Explanation(
        verdict,
        *(times.begin, times.end),
        len(team - {verdict.machine}),
        tuple(moved),
        runners,
        found,
        events,
        tuple(gone),
        hang,
        closeups(store, verdict.machine, verdict.metric, (times.begin, times.end)),
    )


def _times(store: ReadableStore, verdict: Verdict, over: int | None) -> Times:
    since, least, most = verdict.since or verdict.time, *(int(s * SECOND) for s in AFTER_S)
    back = int(min(max(2 * (verdict.time - since), BACK_S[0] * SECOND), BACK_S[1] * SECOND))
    last = min(max(verdict.time + SECOND * 60, since + least), since + most)
    if over is not None:
        last = min(last, max(over, verdict.time))
    ends = store.span(since - back - 1)
    first, newest = ends if ends else (since - back, last)
    said = max(verdict.time, since + int(GUARD_S * SECOND))
    return Times(max(since - back, first - 1), since, said, min(last, newest))


def _team(store: ReadableStore, verdict: Verdict) -> set[str]:
    """Machines that worked for the same task at the time of the verdict."""
    tasks, now = Tasks(), verdict.time
    spans = {"task": 0, "event": 0, "nccl": now - 60 * SECOND, "host": now - 60 * SECOND, "gpu": now - 60 * SECOND}
    there = store.tables()
    for table in [name for name in spans if name in there] or there:
        rows = rows_of(table, store.read(table, spans.get(table, now - 60 * SECOND), now))
        if len(rows.time):
            tasks.feed(rows)
    tasks.turn(now)
    return {machine for machine in tasks.seen if tasks.task_of(machine) == verdict.task} or set(tasks.seen)


def _events(store: ReadableStore, verdict: Verdict, times: Times) -> tuple[EventRow, ...]:
    if "event" not in store.tables():
        return ()
    rows = rows_of("event", store.read("event", times.begin, times.end))
    if not len(rows.time):
        return ()
    source, code = (rows.who(1 + rows.keys.index(key)) if key in rows.keys else rows.text(key) for key in _EVENT_KEYS)
    device, severity, message = (rows.text(name) for name in ("device", "severity", "message"))
    mine = np.flatnonzero((rows.who(0) == verdict.machine) & (source != OPERATOR) & (code != ZOOM_CODE))
    return tuple(EventRow(int(rows.time[at]), *(w[at] for w in (code, device, severity, message))) for at in mine)


_EVENT_KEYS = ("source", "code")


def _signs(
    verdict: Verdict,
    moved: list[MetricShift],
    events: tuple[EventRow, ...],
    gone: list[tuple[str, str | None, int]],
) -> dict[str, float]:
    """All that speaks, as the table of kinds writes it, with its effect."""
    signs = {f"gone.{table}": 1.0 for table, _, _ in gone}
    signs |= {f"event.{one.code}": 1.0 for one in events if one.severity in ("warn", "crit")}
    for one in moved:
        signs[one.sign] = max(abs(one.effect), signs.get(one.sign, 0.0))
    metric = METRICS.get(verdict.metric)
    if verdict.kind == "progress":
        signs[f"progress.{verdict.metric}"] = verdict.score
    elif verdict.metric.startswith("event."):
        signs[verdict.metric] = verdict.score
    elif verdict.kind == "evidence" and metric is not None:
        falls = metric.direction == "low" or metric.name.endswith("mit_bytes_total")
        signs.setdefault(f"{verdict.metric}{'-' if falls else '+'}", verdict.score)
    return signs
