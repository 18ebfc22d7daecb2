"""AlertDispatcher: turns verdicts into alerts and queues them for each sink."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from detector.alerts.alert import BLIND, Alert, IncidentTracker, Sink, alert_of_note, ends_first
from detector.alerts.blindness import Blindness, View, brief_of
from detector.alerts.briefing import Briefing
from detector.alerts.delivery import SinkQueue
from detector.alerts.shared_log import SharedLog
from detector.model.text import subject
from detector.model.verdict import Verdict
from detector.thresholds.report import LearningReport
from store.schema.time import SECOND

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Shown:
    """The open incidents and what is read, after the step at `time` (Unix ns; 0: there was none)."""

    time: int
    view: View
    open: tuple[Alert, ...]


@dataclass
class AlertDispatcher:
    """All sinks; a sink that fails or hangs delays neither the others nor the detector."""

    sinks: Mapping[str, Sink]
    folder: Path
    blind_s: float = 60.0
    """Seconds without readings after which every sink is alerted that Peerwatch is blind."""
    briefing: Briefing = field(default_factory=Briefing)
    incidents: IncidentTracker = field(default_factory=IncidentTracker)
    workers: list[SinkQueue] = field(default_factory=list)
    acknowledged: Callable[[Verdict], bool] = lambda verdict: False
    """Whether the operator has acknowledged a verdict: then its alert is not repeated."""
    held: Callable[[], bool] = lambda: True
    """Whether this detector may speak; of several on one store one may."""
    shared: SharedLog | None = None
    """What earlier detectors on the same store have delivered."""
    learning: LearningReport | None = None
    """How far the detector has learned its thresholds, for other threads to read."""
    shown: Shown = field(default_factory=lambda: Shown(0, View(0, {}), ()))
    """What the last step left, for other threads to read."""
    verdicts: Counter[str] = field(default_factory=Counter)
    """Level -> verdicts so far."""
    _history: dict[str, Alert] = field(default_factory=dict)
    _error: str = ""
    _worked: int = 0
    """When the store could last be used, Unix ns."""

    def __post_init__(self) -> None:
        """Load the open blindness of an earlier detector."""
        self.blindness = Blindness(self.folder / "blind.json", self.blind_s)
        if self.shared is not None:
            self.blindness.said = self.shared.blind

    def begin(self, said: Iterable[Verdict]) -> None:
        """Restore the incidents of earlier verdicts."""
        blind = [self.blindness.said] if self.blindness.said else []
        self._history = self.incidents.restore([*said, *blind])

    def publish(
        self,
        verdicts: Iterable[Verdict],
        machines: frozenset[str],
        now: int,
        silent: Mapping[str, int] | None = None,
        notes: Iterable[Verdict] = (),
    ) -> None:
        """Queue alerts for new verdicts on the watched `machines` at `now` (Unix ns); returns at once.

        `silent` are the machines that cannot be judged, each with the time of its last reading; `notes` are for sinks
        with `min_level` note. The first call also queues what each sink has missed of earlier incidents.
        """
        if self._error:
            log.warning("the store can be used again, after %d s", (now - self._worked) // SECOND)
        self._error, self._worked = "", now
        self._step(ends_first(verdicts), machines, View(len(machines), silent or {}), now)
        for note in notes:
            self._queue(alert_of_note(note, len(machines)), now)

    def fail(self, error: Exception, machines: frozenset[str], now: int) -> None:
        """Note that the store fails at `now` (Unix ns), so no machine is judged; logged once."""
        self._worked = self._worked or now
        if not self._error:
            log.error("the store cannot be used, trying again: %s", error)
        self._error = " ".join(str(error).split()) or type(error).__name__
        blind = dict.fromkeys(machines, self._worked)
        self._step([], machines, View(len(machines), blind, self._error, self._worked), now)

    def clock_was_set(self) -> None:
        """Measure from now on: what was noted before has times of another clock."""
        self._worked = 0
        self.blindness.begin_again()

    def _step(self, verdicts: list[Verdict], machines: frozenset[str], view: View, now: int) -> None:
        fleet = len(machines)
        if not self.workers:
            self._start(fleet)
        for verdict in [*verdicts, *self.blindness.assess(now, view)]:
            self.verdicts[verdict.level] += 1
            if alert := self.incidents.record(verdict):
                self._queue(self._enriched(alert, fleet, view.silent), now)
        unacknowledged = [alert for alert in self.incidents.open.values() if not self.acknowledged(alert.finding)]
        still = [self._enriched(alert, fleet, view.silent) for alert in unacknowledged]
        self.shown = Shown(now, view, tuple(self.incidents.open.values()))
        well = machines - {machine for _, machine in self.incidents.open} - view.silent.keys()
        for worker in self.workers:
            worker.step(still, well if len(view.silent) < fleet else None, now)

    def _queue(self, alert: Alert, now: int) -> None:
        if alert.end is None and alert.verdict.kind != BLIND:
            self.briefing.ask(alert)
        for worker in self.workers:
            worker.enqueue(alert, now)

    def _enriched(self, alert: Alert, fleet: int, silent: Mapping[str, int]) -> Alert:
        """The alert with fleet size, worst open level and time of the last reading."""
        verdict = alert.verdict
        if verdict.kind == BLIND and alert.end is None:
            held = [subject(one.verdict.machine, one.verdict.device) for one in self.incidents.open.values()]
            alert = replace(alert, brief=brief_of([name for name in held if name != verdict.machine]))
        unread = silent.get(verdict.machine) if alert.end is None else None
        standing = self.incidents.standing(verdict.machine)
        return replace(alert, fleet=fleet, standing=standing, unread=unread)

    def _start(self, fleet: int) -> None:
        history = {name: replace(alert, fleet=fleet) for name, alert in self._history.items()}
        enrich = self.briefing.enrich
        files = {name: self.folder / f"{name}.json" for name in self.sinks}
        self.workers = [
            SinkQueue(name, sink, files[name], enrich, self._may_send, self.shared) for name, sink in self.sinks.items()
        ]
        self._history = {}
        for alert in history.values():
            if alert.end is None and alert.verdict.kind != BLIND:
                self.briefing.ask(alert)
        for worker in self.workers:
            worker.begin(history)

    def _may_send(self, alert: Alert | None) -> bool:
        """Whether this detector may send an alert, or a heartbeat, now.

        Without the store no detector can hold the lease, and that is what the last holder has to say.
        """
        return self.held() or (bool(self._error) and alert is not None and alert.verdict.kind == BLIND)

    def close(self) -> None:
        """Deliver what each sink can take within FAREWELL_S, then stop."""
        self.briefing.close()
        for worker in self.workers:
            worker.close()
