"""SinkQueue: one sink with its thread, its waiting alerts, its retries and its delivery log."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from detector.alerts.alert import Alert, RefusedError, RetryLaterError, Sink
from detector.alerts.delivery_log import DeliveryLog, read_delivery_log, write_delivery_log
from detector.alerts.shared_log import DeliveryMemory, FileOnly
from detector.model.verdict import RANK
from store.schema.time import SECOND

log = logging.getLogger(__name__)

BACK_OFF_S = (1.0, 300.0)
"""The first and the longest wait after a failure, in seconds; each wait doubles."""
MOST_WAITING = 1000
"""Most incidents that wait for one sink; beyond that the oldest are dropped and counted."""
HANG_NS = 120 * SECOND
_ASK_AGAIN_S = 0.2
FAREWELL_S = 3.0
"""How long a stopping detector waits for each sink, in seconds; the next detector delivers what is left."""


class SinkQueue:
    """The queue of one sink: only the newest alert of each incident waits; failures are retried."""

    def __init__(
        self,
        name: str,
        sink: Sink,
        file: Path,
        enrich: Callable[[Alert], Alert] = lambda one: one,
        may_send: Callable[[Alert | None], bool] = lambda alert: True,
        memory: DeliveryMemory | None = None,
    ) -> None:
        self.name, self.sink, self.file, self.enrich, self.may_send = name, sink, file, enrich, may_send
        self.memory = memory or FileOnly()
        found = read_delivery_log(file)
        self.known = found is not None
        """Whether a delivery log of an earlier detector exists."""
        self.delivery_log = found or DeliveryLog()
        if (shared := self.memory.load(name)) is not None:
            self.known, self.delivery_log.reported = True, shared
        self._waiting: dict[str, Alert] = {}
        self._busy: Alert | None = None
        self._well: frozenset[str] | None = None
        self._now = self._heartbeat_at = self._began = 0
        self._call = self._seen = 0  # number of the current call, and of the call at the last step
        self._on = self._hung = self._loud = False
        self._changed, self._writing = threading.Condition(), threading.Lock()
        self._written = True
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"sink {name}", daemon=True)

    def begin(self, history: Mapping[str, Alert]) -> None:
        """Enqueue what the sink has missed of earlier incidents, and start the thread."""
        for name, alert in history.items():
            if alert.end is None and not self.known:
                self.delivery_log.reported[name] = (alert.verdict.level, alert.verdict.time)  # unknown: do not repeat
                self.memory.record(self.name, alert, alert.verdict.time)
            elif alert.end is None and self.delivery_log.level(name) != alert.verdict.level:
                self.enqueue(alert, alert.verdict.time)
            elif alert.end is None:
                self.memory.record(self.name, alert, self.delivery_log.reported[name][1])
            elif alert.end is not None and name in self.delivery_log.reported:
                self.enqueue(alert, alert.end)
        self.delivery_log.reported = {
            name: reported for name, reported in self.delivery_log.reported.items() if name in history
        }
        self._save()
        self._thread.start()

    def enqueue(self, alert: Alert, now: int) -> None:
        """Queue an alert at `now` (Unix ns); returns at once."""
        with self._changed:
            known = alert.incident in self.delivery_log.reported or alert.incident in self._waiting
            known |= self._busy is not None and self._busy.incident == alert.incident
            mild = RANK[alert.worst] < RANK[self.sink.min_level]
            missed = not known and alert.end is not None and alert.event != "note"
            if missed or mild or not self.sink.takes_alerts:
                return
            self._now = max(self._now, now)
            self._waiting.pop(alert.incident, None)
            self._waiting[alert.incident] = alert
            while len(self._waiting) > MOST_WAITING:
                self._waiting.pop(next(iter(self._waiting)))
                self.delivery_log.dropped += 1
            self._changed.notify()

    def step(self, still: Iterable[Alert], well: frozenset[str] | None, now: int) -> None:
        """Once a detector step at `now` (Unix ns): repeat open incidents, send heartbeats, report a call that hangs.

        `well` are the healthy machines; None while nothing is read, then no heartbeat is sent.
        """
        self._now = now
        for alert in still if self.sink.repeat_s else ():
            reported, busy = self.delivery_log.reported.get(alert.incident), self._busy
            old = reported is not None and _is_over(now - reported[1], self.sink.repeat_s)
            if old and alert.incident not in self._waiting and (busy is None or busy.incident != alert.incident):
                self.enqueue(replace(alert, event="repeat"), now)
        if self.sink.heartbeat_s and well is not None and _is_over(now - self._heartbeat_at, self.sink.heartbeat_s):
            with self._changed:
                self._well, self._heartbeat_at = well, now
                self._changed.notify()
        self._watch(now)

    def close(self) -> None:
        """Try once more to deliver the waiting alerts, for at most FAREWELL_S."""
        self._stop.set()
        with self._changed:
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(FAREWELL_S)
        if waiting := len(self._waiting) + (self._busy is not None):
            log.warning("sink %s stops with %d undelivered alerts; the next start delivers them", self.name, waiting)

    def _watch(self, now: int) -> None:
        """Log once when the current call runs longer than HANG_NS."""
        if not self._on or self._call != self._seen:
            self._seen, self._began, self._hung = self._call, now, False
        elif not self._hung and _is_over(now - self._began, HANG_NS / SECOND):
            self._hung = True
            self.delivery_log.hung += 1
            busy = self._busy
            over = f"the alert about {busy.verdict.machine}" if busy else "the heartbeat"
            text = f"has hung for {(now - self._began) // SECOND} s over {over}"
            log.error("sink %s %s; %d alerts wait for it; other sinks go on", self.name, text, len(self._waiting))
            self.delivery_log.error = text
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
                    return  # stopped, and the queue is empty
            while not self.may_send(self._busy):
                if self._stop.wait(_ASK_AGAIN_S):
                    return  # another detector delivers it
            rest_s = self._try(self._busy, well)
            if rest_s is None:
                wait_s = BACK_OFF_S[0]
            elif self._stop.is_set():
                return
            else:
                self._stop.wait(max(wait_s, rest_s))
                wait_s = min(2 * wait_s, BACK_OFF_S[1])

    def _try(self, alert: Alert | None, well: frozenset[str] | None) -> float | None:
        """Call the sink once; returns None on success, else the seconds until the next attempt that it asks for."""
        self._call, self._on = self._call + 1, True
        try:
            if alert:
                self._deliver(alert)
            if well is not None:
                self.sink.heartbeat(well)
        except Exception as error:
            self._fail(self._busy, error)
            return error.rest_s if isinstance(error, RetryLaterError) else 0.0
        finally:
            self._on = False
        if self._loud:
            log.warning("sink %s works again", self.name)
        self._loud = False
        return None

    def _deliver(self, alert: Alert) -> None:
        try:
            log.debug("sink %s: %s", self.name, self.sink.send(self.enrich(alert)))
        except RefusedError as error:
            log.error("sink %s refuses the alert about %s: %s", self.name, alert.verdict.machine, error)
            self._settle(alert, "refused", str(error))
        else:
            self._settle(alert, "delivered", "")

    def _settle(self, alert: Alert, how: str, error: str) -> None:
        """Log the alert as settled: it is not sent again."""
        with self._changed:
            self._busy = None
            setattr(self.delivery_log, how, getattr(self.delivery_log, how) + 1)
            self.delivery_log.error = error
            if alert.end is None:
                self.delivery_log.reported[alert.incident] = (alert.verdict.level, self._now)
            else:
                self.delivery_log.reported.pop(alert.incident, None)
        self._save()
        self.memory.record(self.name, alert, self._now)

    def _fail(self, alert: Alert | None, error: Exception) -> None:
        """Count the failure, log the first, and queue this alert again unless a newer one of its incident waits."""
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        with self._changed:
            self._busy = None
            self.delivery_log.failed += 1
            self.delivery_log.error = reason
            if alert:
                self._waiting.setdefault(alert.incident, alert)
        if not self._loud:
            known = isinstance(error, OSError)  # any other exception is a defect here: log the traceback
            log.error("sink %s fails, trying again: %s", self.name, reason, exc_info=None if known else error)
        self._loud = True
        self._save()

    def _save(self) -> None:
        with self._writing:
            with self._changed:
                words = self.delivery_log.packed()
            try:
                write_delivery_log(self.file, words)
            except OSError as error:
                if self._written:
                    log.error(
                        "%s cannot be written, so a restart may send alerts twice: %s",
                        self.file,
                        error.strerror,
                    )
                self._written = False
            else:
                self._written = True


def _is_over(age: int, seconds: float) -> bool:
    """Whether something is at least so old (ns), or was noted before the clock was set back."""
    return not 0 <= age < seconds * SECOND
