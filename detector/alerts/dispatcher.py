"""The desk: makes alerts of verdicts and hands them to the sinks, each of which has a thread and a ledger."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from detector.alerts.alert import BLIND, Alert, IncidentTracker, Sink, ends_first
from detector.alerts.blindness import Blindness, View, brief_of
from detector.alerts.briefing import Briefing
from detector.alerts.delivery import SinkQueue
from detector.model.text import subject
from detector.model.verdict import Verdict
from store.schema.time import SECOND

log = logging.getLogger(__name__)


@dataclass
class AlertDispatcher:
    """All sinks; a sink that fails or hangs keeps nothing from the others, nor from the detector."""

    sinks: Mapping[str, Sink]
    folder: Path
    blind_s: float = 60.0
    """After so long without readings everybody hears that Peerwatch is blind."""
    briefing: Briefing = field(default_factory=Briefing)
    book: IncidentTracker = field(default_factory=IncidentTracker)
    workers: list[SinkQueue] = field(default_factory=list)
    quiet: Callable[[Verdict], bool] = lambda verdict: False
    """Whether somebody has acknowledged this: then it is not repeated."""
    _history: dict[str, Alert] = field(default_factory=dict)
    _error: str = ""
    _worked: int = 0
    """When the store could last be used, Unix ns."""

    def __post_init__(self) -> None:
        """Know whether an earlier detector was blind."""
        self.blindness = Blindness(self.folder / "blind.json", self.blind_s)

    def begin(self, said: Iterable[Verdict]) -> None:
        """Take up the incidents that earlier verdicts leave."""
        blind = [self.blindness.said] if self.blindness.said else []
        self._history = self.book.take_up([*said, *blind])

    def hear(
        self, verdicts: Iterable[Verdict], machines: frozenset[str], now: int, silent: Mapping[str, int] | None = None
    ) -> None:
        """New verdicts, and the machines that are watched, at `now` (Unix ns); returns at once.

        `silent` are those of them that cannot be judged, with the time when each was last read. At the first call
        each sink hears what it has missed of earlier incidents.
        """
        if self._error:
            log.warning("the store can be used again, after %d s", (now - self._worked) // SECOND)
        self._error, self._worked = "", now
        self._turn(ends_first(verdicts), machines, View(len(machines), silent or {}), now)

    def fail(self, error: Exception, machines: frozenset[str], now: int) -> None:
        """The store cannot be used at `now`, so that none of the machines is judged; the log says so once."""
        self._worked = self._worked or now
        if not self._error:
            log.error("the store cannot be used, trying again: %s", error)
        self._error = " ".join(str(error).split()) or type(error).__name__
        blind = dict.fromkeys(machines, self._worked)
        self._turn([], machines, View(len(machines), blind, self._error, self._worked), now)

    def _turn(self, verdicts: list[Verdict], machines: frozenset[str], view: View, now: int) -> None:
        fleet = len(machines)
        if not self.workers:
            self._start(fleet)
        for verdict in [*verdicts, *self.blindness.look(now, view)]:
            if alert := self.book.enter(verdict):
                self._pass(self._known(alert, fleet, view.silent), now)
        spoken = [alert for alert in self.book.open.values() if not self.quiet(alert.finding)]
        still = [self._known(alert, fleet, view.silent) for alert in spoken]
        well = machines - {machine for _, machine in self.book.open} - view.silent.keys()
        for worker in self.workers:
            worker.turn(still, well if len(view.silent) < fleet else None, now)

    def _pass(self, alert: Alert, now: int) -> None:
        if alert.end is None and alert.verdict.kind != BLIND:
            self.briefing.ask(alert)
        for worker in self.workers:
            worker.take(alert, now)

    def _known(self, alert: Alert, fleet: int, silent: Mapping[str, int]) -> Alert:
        """The alert with all that is known of it here."""
        verdict = alert.verdict
        if verdict.kind == BLIND and alert.end is None:
            held = [subject(one.verdict.machine, one.verdict.device) for one in self.book.open.values()]
            alert = replace(alert, brief=brief_of([name for name in held if name != verdict.machine]))
        unread = silent.get(verdict.machine) if alert.end is None else None
        standing = self.book.standing(verdict.machine)
        return replace(alert, fleet=fleet, standing=standing, unread=unread)

    def _start(self, fleet: int) -> None:
        history = {name: replace(alert, fleet=fleet) for name, alert in self._history.items()}
        enrich = self.briefing.enrich
        files = {name: self.folder / f"{name}.json" for name in self.sinks}
        self.workers = [SinkQueue(name, sink, files[name], enrich) for name, sink in self.sinks.items()]
        self._history = {}
        for alert in history.values():
            if alert.end is None and alert.verdict.kind != BLIND:
                self.briefing.ask(alert)
        for worker in self.workers:
            worker.begin(history)

    def close(self) -> None:
        """Let each sink tell what it can at once."""
        self.briefing.close()
        for worker in self.workers:
            worker.close()
