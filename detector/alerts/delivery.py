"""A sink at work: a thread of its own, what waits for it, and its ledger."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from detector.alerts.alert import Alert, RefusedError, RetryLaterError, Sink
from detector.alerts.delivery_log import DeliveryLog, read_delivery_log, write_delivery_log
from detector.model.verdict import RANK
from store.schema.time import SECOND

log = logging.getLogger(__name__)

BACK_OFF_S = (1.0, 300.0)
"""The first and the longest wait after a failure; it doubles."""
MOST_WAITING = 1000
"""Incidents that wait for one sink; beyond that the oldest are dropped and counted."""
HANG_NS = 120 * SECOND
FAREWELL_S = 3.0
"""How long the end of the detector may wait for each sink; what is left is told by the next one."""


class SinkQueue:
    """One sink at work: of each incident only the newest alert waits; what fails is tried again."""

    def __init__(self, name: str, sink: Sink, file: Path, enrich: Callable[[Alert], Alert] = lambda one: one) -> None:
        self.name, self.sink, self.file, self.enrich = name, sink, file, enrich
        found = read_delivery_log(file)
        self.known = found is not None
        """Whether this sink was at work before."""
        self.ledger = found or DeliveryLog()
        self._waiting: dict[str, Alert] = {}
        self._busy: Alert | None = None
        self._well: frozenset[str] | None = None
        self._now = self._beaten = self._began = 0
        self._call = self._seen = 0  # number of the call that is on, and of the one that was on at the last step
        self._on = self._hung = self._loud = False
        self._changed, self._writing = threading.Condition(), threading.Lock()
        self._written = True
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"sink {name}", daemon=True)

    def begin(self, history: Mapping[str, Alert]) -> None:
        """Take up what the sink has not been told of the incidents so far, and start."""
        for name, alert in history.items():
            if alert.end is None and not self.known:
                self.ledger.told[name] = (alert.verdict.level, alert.verdict.time)  # nobody knows: rather not twice
            elif alert.end is None and self.ledger.level(name) != alert.verdict.level:
                self.take(alert, alert.verdict.time)
            elif alert.end is not None and name in self.ledger.told:
                self.take(alert, alert.end)
        self.ledger.told = {name: told for name, told in self.ledger.told.items() if name in history}
        self._save()
        self._thread.start()

    def take(self, alert: Alert, now: int) -> None:
        """An alert for this sink at `now` (Unix ns); returns at once."""
        with self._changed:
            known = alert.incident in self.ledger.told or alert.incident in self._waiting
            known |= self._busy is not None and self._busy.incident == alert.incident
            mild = RANK[alert.worst] < RANK[self.sink.least]
            if (not known and alert.end is not None) or mild or not self.sink.hears:
                return
            self._now = max(self._now, now)
            self._waiting.pop(alert.incident, None)
            self._waiting[alert.incident] = alert
            while len(self._waiting) > MOST_WAITING:
                self._waiting.pop(next(iter(self._waiting)))
                self.ledger.dropped += 1
            self._changed.notify()

    def turn(self, still: Iterable[Alert], well: frozenset[str] | None, now: int) -> None:
        """Once a step: what lasts is repeated, who is well is told, and a call that hangs is noticed.

        `well` is None while nothing is read: then there is no heartbeat.
        """
        self._now = now
        for alert in still if self.sink.repeat_s else ():
            told, busy = self.ledger.told.get(alert.incident), self._busy
            old = told is not None and now - told[1] >= self.sink.repeat_s * SECOND
            if old and alert.incident not in self._waiting and (busy is None or busy.incident != alert.incident):
                self.take(replace(alert, event="repeat"), now)
        if self.sink.beat_s and well is not None and now - self._beaten >= self.sink.beat_s * SECOND:
            with self._changed:
                self._well, self._beaten = well, now
                self._changed.notify()
        self._watch(now)

    def close(self) -> None:
        """Try once more what waits, for a short while."""
        self._stop.set()
        with self._changed:
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(FAREWELL_S)
        if waiting := len(self._waiting) + (self._busy is not None):
            log.warning("sink %s ends with %d alerts untold; they are told after the next start", self.name, waiting)

    def _watch(self, now: int) -> None:
        """Say it once when the call that is on has been on for too long."""
        if not self._on or self._call != self._seen:
            self._seen, self._began, self._hung = self._call, now, False
        elif now - self._began > HANG_NS and not self._hung:
            self._hung = True
            self.ledger.hung += 1
            busy = self._busy
            over = f"the alert about {busy.verdict.machine}" if busy else "the machines that are well"
            text = f"has hung for {(now - self._began) // SECOND} s over {over}"
            log.error("sink %s %s; %d alerts wait for it, nothing else does", self.name, text, len(self._waiting))
            self.ledger.error = text
            self._save()

    def _run(self) -> None:
        wait_s = BACK_OFF_S[0]
        while True:
            with self._changed:
                while not (self._waiting or self._well is not None or self._stop.is_set()):
                    self._changed.wait()
                well, self._well = self._well, None
                if self._waiting:
                    self._busy = self._waiting.pop(next(iter(self._waiting)))
                elif well is None:
                    return  # told to stop, and nothing is left
            rest_s = self._try(self._busy, well)
            if rest_s is None:
                wait_s = BACK_OFF_S[0]
            elif self._stop.is_set():
                return
            else:
                self._stop.wait(max(wait_s, rest_s))
                wait_s = min(2 * wait_s, BACK_OFF_S[1])

    def _try(self, alert: Alert | None, well: frozenset[str] | None) -> float | None:
        """One call of the sink; None if it went well, else the seconds that it wants to be left alone."""
        self._call, self._on = self._call + 1, True
        try:
            if alert:
                self._tell(alert)
            if well is not None:
                self.sink.beat(well)
        except Exception as error:
            self._fail(self._busy, error)
            return error.rest_s if isinstance(error, RetryLaterError) else 0.0
        finally:
            self._on = False
        if self._loud:
            log.warning("sink %s works again", self.name)
        self._loud = False
        return None

    def _tell(self, alert: Alert) -> None:
        try:
            log.debug("sink %s: %s", self.name, self.sink.send(self.enrich(alert)))
        except RefusedError as error:
            log.error("sink %s does not pass on the alert about %s: %s", self.name, alert.verdict.machine, error)
            self._settle(alert, "refused", str(error))
        else:
            self._settle(alert, "delivered", "")

    def _settle(self, alert: Alert, how: str, error: str) -> None:
        """Note that the sink need not hear this again."""
        with self._changed:
            self._busy = None
            setattr(self.ledger, how, getattr(self.ledger, how) + 1)
            self.ledger.error = error
            if alert.end is None:
                self.ledger.told[alert.incident] = (alert.verdict.level, self._now)
            else:
                self.ledger.told.pop(alert.incident, None)
        self._save()

    def _fail(self, alert: Alert | None, error: Exception) -> None:
        """Count it, say it the first time, and let a newer alert of the incident or else this one wait."""
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        with self._changed:
            self._busy = None
            self.ledger.failed += 1
            self.ledger.error = reason
            if alert:
                self._waiting.setdefault(alert.incident, alert)
        if not self._loud:
            known = isinstance(error, OSError)  # what is none is a fault of ours, and shows where
            log.error("sink %s fails, trying again: %s", self.name, reason, exc_info=None if known else error)
        self._loud = True
        self._save()

    def _save(self) -> None:
        with self._writing:
            with self._changed:
                words = self.ledger.packed()
            try:
                write_delivery_log(self.file, words)
            except OSError as error:
                if self._written:
                    log.error("%s cannot be written, so that alerts may come twice: %s", self.file, error.strerror)
                self._written = False
            else:
                self._written = True
