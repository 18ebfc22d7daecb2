"""From rows to verdicts: the same steps over a recording and over a live store, never looking ahead."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from detector.config import Config
from detector.engine.eviction import SWEEP_NS, let_go
from detector.engine.incidents import Incidents
from detector.harm.judge import Harm
from detector.methods.evidence.method import Evidence
from detector.methods.peers.clustering import Likeness, beside_alike
from detector.methods.peers.coverage import alone, by_machine, sentences
from detector.methods.peers.device_attribution import at_port
from detector.methods.peers.method import Peers
from detector.methods.peers.state import Panel
from detector.methods.progress.method import Progress
from detector.model.verdict import Finding, Verdict
from detector.timeseries.comovement import apart
from detector.timeseries.rows import Rows, rows_of
from detector.topology.tasks import Tasks
from store.schema.catalogue import TABLES, UNJUDGED, ZOOM
from store.schema.contract import ReadableStore
from store.schema.time import NEVER, SECOND

METHODS: tuple[Callable[[Config], Method], ...] = (Peers, Progress, Evidence)
CHUNK_STEPS = 300
LEAST_TICK_NS = SECOND // 5
APART_NS = 5 * SECOND
"""How often closer looks are read, while something is open."""


class Method(Protocol):
    """A way of judging: keeps its own memory, says who stands convicted after each step."""

    def step(self, now: int, rows: Mapping[str, Rows], tasks: Tasks) -> list[Finding]:
        """Judge at `now` (Unix ns) with the rows that came since the last step."""


@dataclass(slots=True)
class State:
    """All that the detector remembers: plain data, so it can be copied, kept and taken up again."""

    tasks: Tasks = field(default_factory=Tasks)
    methods: list[Method] = field(default_factory=list)
    incidents: Incidents = field(default_factory=Incidents)
    likeness: Likeness = field(default_factory=Likeness)
    harm: Harm = field(default_factory=Harm)
    swept: int = NEVER
    """When it was last looked for who went for good, Unix ns."""


class Detector:
    """Judges step by step; `state` is its whole memory."""

    def __init__(self, config: Config | None = None, state: State | None = None) -> None:
        self.config = config or Config()
        self.state = state or State()
        if not self.state.methods:
            self.state.methods = [method(self.config) for method in METHODS]
        self._told_apart = NEVER

    def step(self, now: int, rows: Mapping[str, Rows]) -> list[Verdict]:
        """Verdicts reached at `now` (Unix ns), given the rows that came since the last step."""
        state = self.state
        for new in rows.values():
            state.tasks.feed(new)
        state.tasks.turn(now)
        if now - state.swept >= SWEEP_NS:
            state.swept = now
            known = frozenset(state.tasks.seen)
            let_go(state.tasks, state.methods, self.config)
            if gone := known - state.tasks.seen:
                state.harm.let_go(gone)
        findings = [finding for method in state.methods for finding in method.step(now, rows, state.tasks)]
        for method in state.methods:
            if isinstance(method, Progress):
                state.tasks.learn_roles(now, method.ranks)
                findings = method.annotate(findings)
        accused = frozenset(task for task, _ in state.incidents.open)
        for panels in self._panels():
            state.likeness.note(now, panels, state.tasks, accused, self.config)
        for panels in self._panels():
            findings = [at_port(finding, panels) for finding in findings]
        findings = [beside_alike(finding, state.tasks.roles) for finding in findings]
        for panels in self._panels():
            state.harm.note(now, panels, self.config)
            findings += state.harm.standstill.findings()
            state.harm.blame(now, (finding.verdict for finding in state.incidents.open.values()))
            graded = (state.harm.graded(finding, panels, now) for finding in findings)
            findings = [finding for finding in graded if finding is not None]
        return state.tasks.jobs.named(state.incidents.update(now, findings, state.tasks.orders))

    def tell_apart(self, store: ReadableStore, now: int) -> None:
        """While something is open, learn from closer looks up to `now` (Unix ns) who has nothing to do with whom."""
        if self.state.incidents.open and now - self._told_apart >= APART_NS:
            self._told_apart = now
            self.state.incidents.apart = apart(store, now)

    def _panels(self) -> list[Mapping[str, Panel]]:
        return [method.panels for method in self.state.methods if isinstance(method, Peers)]

    def take_up(self, events: Rows | None, verdicts: Iterable[Verdict], until: int) -> None:
        """Go on from what the store remembers: orders among the events so far, and verdicts that are still open.

        An open verdict that rests on no lasting fact has until `until` (Unix ns) to be found again.
        """
        if events is not None:
            self.state.tasks.orders.feed(events)
        still = list(verdicts)
        self.state.incidents.take_up(still, until)
        for method in self.state.methods:
            if isinstance(method, Evidence):
                method.take_up(still)

    def without_peers(self) -> list[str]:
        """Who is compared with nobody, and why, a sentence each."""
        return [words for panels in self._panels() for words in sentences(alone(panels, self.config), self.config)]

    def alone(self) -> dict[str, str]:
        """By machine, in words, by what it is compared with nobody."""
        found = [one for panels in self._panels() for one in alone(panels, self.config)]
        return by_machine(found, self.config)

    def suspicions(self) -> dict[str, float]:
        """By machine, the evidence of the peers against it, in multiples of what convicts."""
        peers = (method for method in self.state.methods if isinstance(method, Peers))
        return {machine: weight for method in peers for machine, weight in method.suspicions().items()}


def read_rows(store: ReadableStore, after: int, until: int) -> dict[str, Rows]:
    """All tables that carry readings, as rows with after < time <= until."""
    names = [name for name in store.tables() if name not in UNJUDGED and not name.endswith(ZOOM)]
    tables = {name: store.read(name, after, until) for name in names}
    return {name: rows_of(name, table) for name, table in tables.items() if table.num_rows}


def tick_of(tables: Mapping[str, Rows]) -> int:
    """The shortest step of the judged tables (ns); one second where nothing tells."""
    steps = [_step_of(rows) for name, rows in tables.items() if _is_judged(name)]
    known = [step for step in steps if step]
    return max(LEAST_TICK_NS, min(known)) if known else SECOND


def _step_of(rows: Rows) -> int:
    order = np.lexsort((rows.time, rows.ident))
    gap = np.diff(rows.time[order])[np.diff(rows.ident[order]) == 0]
    gap = gap[gap > 0]
    return int(np.median(gap)) if len(gap) else 0


def replay(
    store: ReadableStore, config: Config | None = None, task: str | None = None, machines: Iterable[str] | None = None
) -> Iterator[Verdict]:
    """Verdicts over all that the store holds, in time order, as if it were live."""
    only = frozenset(machines) if machines else None
    yield from judge(store, Detector(config, State(tasks=Tasks(only=task, machines=only))))


def judge(store: ReadableStore, detector: Detector) -> Iterator[Verdict]:
    """Verdicts of a detector over all that the store holds, in time order."""
    for until, rows in walk(store, detector.state.incidents.settled):
        yield from detector.step(until, rows)
        detector.tell_apart(store, until)


def walk(store: ReadableStore, idle: Callable[[], bool] = lambda: True) -> Iterator[tuple[int, dict[str, Rows]]]:
    """All that the store holds, step by step in time order: the time of the step and the rows that are new then.

    Where nothing was read there is nothing to judge, and a clock that was wrong once may leave decades empty: they are
    left out while `idle` says that nothing waits to be cleared.
    """
    first, last, tick = _span(store)
    now = (first // tick) * tick
    while now <= last:
        end = min(now + CHUNK_STEPS * tick, last + tick)
        chunk = read_rows(store, now, end)
        for until in range(now + tick, end + tick, tick):
            yield until, {name: rows.span(until - tick, until) for name, rows in chunk.items()}
        now += CHUNK_STEPS * tick
        if not chunk and idle() and (rest := store.span(now)):
            now = max(now, (rest[0] - 1) // tick * tick)


def _span(store: ReadableStore) -> tuple[int, int, int]:
    """Time before the first reading, time of the last, and the step to go by, learned from the first readings."""
    ends = store.span(NEVER)
    if ends is None:
        return 0, -1, SECOND
    first, last = ends[0], min(ends[1], -NEVER)  # later than that is no time
    look = 60 * SECOND
    while True:
        rows = read_rows(store, first - 1, min(first + look, last))
        if look >= last - first or any(_step_of(new) for name, new in rows.items() if _is_judged(name)):
            return first - 1, last, tick_of(rows)
        look *= 4


def _is_judged(table: str) -> bool:
    return table not in TABLES or TABLES[table].compared
