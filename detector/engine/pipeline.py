"""From rows to verdicts: the same steps over a recording and over a live store, never looking ahead."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from detector.config import Config
from detector.engine.eviction import SWEEP_NS, evict
from detector.engine.incidents import Incidents
from detector.engine.sampled_probes import SampledProbes
from detector.harm.judge import Harm
from detector.methods.contract import Method
from detector.methods.evidence.method import Evidence
from detector.methods.peers.device_attribution import attribute_to_gpu, attribute_to_port
from detector.methods.peers.groups.clustering import PeerClustering, annotate_clustered
from detector.methods.peers.groups.coverage import by_machine, sentences, uncompared
from detector.methods.peers.method import Peers
from detector.methods.peers.state import Panel
from detector.methods.progress.method import Progress
from detector.model.kinds import is_work
from detector.model.verdict import Finding, Verdict
from detector.thresholds.learner import Thresholds
from detector.timeseries.comovement import apart
from detector.timeseries.rows import Rows, rows_of
from detector.topology.tasks import Tasks
from store.schema.catalogue import TABLES, UNJUDGED, ZOOM
from store.schema.contract import ReadableStore
from store.schema.time import NEVER, SECOND

METHODS: tuple[Callable[[Config], Method], ...] = (Peers, Progress, Evidence)
CHUNK_STEPS = 300
GAP_NS = 600 * SECOND
"""After so long without a reading nothing is left that time alone would clear."""
LEAST_TICK_NS = SECOND // 5
INDEPENDENCE_NS = 5 * SECOND
"""How often zooms are read, while an incident is open."""


@dataclass(slots=True)
class State:
    """The state of the detector: plain data, so that it can be copied, saved and restored."""

    tasks: Tasks = field(default_factory=Tasks)
    methods: list[Method] = field(default_factory=list)
    incidents: Incidents = field(default_factory=Incidents)
    clustering: PeerClustering = field(default_factory=PeerClustering)
    harm: Harm = field(default_factory=Harm)
    thresholds: Thresholds = field(default_factory=Thresholds)
    swept: int = NEVER
    """The time of the last eviction, Unix ns."""

    def panels(self) -> dict[str, Panel] | None:
        """The peer comparison of all methods by table; None if no method makes one."""
        found = [panels for method in self.methods if (panels := method.compared()) is not None]
        return {table: panel for panels in found for table, panel in panels.items()} if found else None


class Detector:
    """Judges step by step; `state` is all that it remembers."""

    def __init__(self, config: Config | None = None, state: State | None = None) -> None:
        self.config = config or Config()
        self.state = state or State()
        if not self.state.methods:
            self.state.methods = [method(self.config) for method in METHODS]
        self._independence_at = NEVER
        self._sampled = SampledProbes()

    def step(self, now: int, rows: Mapping[str, Rows]) -> list[Verdict]:
        """Verdicts reached at `now` (Unix ns), given the rows that came since the last step."""
        state = self.state
        for new in rows.values():
            state.tasks.feed(new)
            if new.table == "cuda":
                self._sampled.feed(new)
        state.tasks.turn(now)
        self._learn_false_alarms(now)
        if now - state.swept >= SWEEP_NS:
            self._evict(now)
        findings = [finding for method in state.methods for finding in method.step(now, rows, state.tasks)]
        for method in state.methods:
            findings = method.annotate(findings)
        if (panels := state.panels()) is not None:
            findings = self._grade(now, findings, panels)
        verdicts = state.incidents.update(now, findings, state.tasks.orders)
        return state.tasks.jobs.named(self._sampled.noted(verdicts))

    def _learn_false_alarms(self, now: int) -> None:
        """Raise thresholds for what the operator calls a false alarm, before its evidence is reset."""
        incidents, orders = self.state.incidents, self.state.tasks.orders
        for machine in {order.machine for order in orders.fresh if order.false}:
            since = (one.verdict.since for (_, name), one in incidents.open.items() if name == machine)
            self.state.thresholds.pardon(machine, min(since, default=now), now)

    def _evict(self, now: int) -> None:
        """Forget machines that are gone."""
        state = self.state
        state.swept, known, numbered = now, state.tasks.seen.copy(), self._numbered()
        evict(state.tasks, state.methods)
        gone = known - state.tasks.seen
        if gone or self._numbered() != numbered:
            state.harm.evict(gone)

    def _numbered(self) -> list[int]:
        """How many entities each table has: they get new numbers when some are forgotten."""
        return [len(panel.window.entities) for panel in (self.state.panels() or {}).values()]

    def _grade(self, now: int, findings: list[Finding], panels: Mapping[str, Panel]) -> list[Finding]:
        """The findings with the device at fault, as verdicts if they harm the task, else as notes."""
        state, incidents = self.state, self.state.incidents
        state.clustering.update(now, panels, state.tasks, frozenset(task for task, _ in incidents.open), self.config)
        findings = [attribute_to_port(attribute_to_gpu(finding, panels), panels) for finding in findings]
        findings = [annotate_clustered(finding, state.tasks.roles) for finding in findings]
        state.harm.update(now, panels, self.config)
        if self.config.false_pages_per_1000_machine_hours:
            state.thresholds.note(now, panels, state.tasks, state.harm.blamed.spans, self.config)
        findings += state.harm.stalls.findings() + state.harm.exits.findings()
        state.harm.blamed.note(now, (finding.verdict for finding in incidents.open.values()))
        graded = (state.harm.graded(finding, panels, now) for finding in findings)
        causes = [annotate_clustered(finding, state.tasks.roles) for finding in state.harm.causes.findings()]
        return [finding for finding in graded if finding is not None] + [_if_alike(cause) for cause in causes]

    def learn_independence(self, store: ReadableStore, now: int) -> None:
        """While an incident is open, learn from zooms up to `now` (Unix ns) which machines are independent."""
        if self.state.incidents.open and now - self._independence_at >= INDEPENDENCE_NS:
            self._independence_at = now
            self.state.incidents.independent = apart(store, now)

    def restore(self, events: Rows | None, verdicts: Iterable[Verdict], until: int) -> None:
        """Resume from the store: orders among the events so far, and verdicts that are still open.

        An open verdict that rests on no lasting fact has until `until` (Unix ns) to be found again.
        """
        if events is not None:
            self.state.tasks.orders.feed(events)
        still = list(verdicts)
        self.state.incidents.restore(still, until)
        for method in self.state.methods:
            method.restore(still)

    def uncompared_text(self) -> list[str]:
        """What is not compared, and why, a sentence each."""
        return sentences(uncompared(self.state.panels() or {}, self.config), self.config)

    def uncompared(self) -> dict[str, str]:
        """By machine, in words, the tables by which it is not compared."""
        return by_machine(uncompared(self.state.panels() or {}, self.config), self.config)

    def suspicions(self) -> dict[str, float]:
        """By machine, the strongest evidence of the peers, in multiples of what raises an alarm."""
        return {machine: evidence for one in self.state.methods for machine, evidence in one.evidence().items()}


def _if_alike(cause: Finding) -> Finding:
    """A cause, or a note where machines that are peers by what they read come to work less alike: no fault of any."""
    unlike = cause.clustered and is_work(cause.verdict.metric)
    return replace(cause, verdict=replace(cause.verdict, level="note")) if unlike else cause


def read_rows(store: ReadableStore, after: int, until: int) -> dict[str, Rows]:
    """All tables that carry readings, as rows with after < time <= until."""
    names = [name for name in store.tables() if name not in UNJUDGED and not name.endswith(ZOOM)]
    tables = {name: store.read(name, after, until) for name in names}
    return {name: rows_of(name, table) for name, table in tables.items() if table.num_rows}


def tick_of(tables: Mapping[str, Rows], unknown: int = SECOND) -> int:
    """The shortest step of the judged tables (ns); `unknown` where nothing tells."""
    steps = [_step_of(rows) for name, rows in tables.items() if _is_judged(name)]
    known = [step for step in steps if step]
    return max(LEAST_TICK_NS, min(known)) if known else unknown


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
        detector.learn_independence(store, until)


def walk(store: ReadableStore, idle: Callable[[], bool] = lambda: True) -> Iterator[tuple[int, dict[str, Rows]]]:
    """All that the store holds, step by step in time order: the time of the step and the rows that are new then.

    Where nothing was read there is nothing to judge, and a clock that was wrong once may leave decades empty: they are
    left out while `idle` says that nothing waits to be cleared, and after ten minutes in any case.
    """
    first, last, tick = _span(store)
    now = read_at = (first // tick) * tick
    while now <= last:
        end = min(now + CHUNK_STEPS * tick, last + tick)
        chunk = read_rows(store, now, end)
        for until in range(now + tick, end + tick, tick):
            yield until, {name: rows.span(until - tick, until) for name, rows in chunk.items()}
        now += CHUNK_STEPS * tick
        read_at = now if chunk else read_at
        if not chunk and (idle() or now - read_at >= GAP_NS) and (rest := store.span(now)):
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
