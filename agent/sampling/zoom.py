"""Zoom: reads one source many times a second for a while, where the detector asks for it.

A request comes from the store, which others can write: only those that the detector signed for this machine are
served, within bounds and a budget. What reads quickly is a second reader of the same thing, so the usual reading,
once a period, does not notice.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from random import Random

from agent.config import AgentConfig
from agent.context import Source
from agent.sampling.zoom_bounds import APART_NS, PROFILE, STACKS, Budget, quick, refusal
from agent.stacks.profile_window import ProfileWindow
from agent.stacks.rounds import HERTZ
from store.schema.contract import StoreError
from store.schema.sample import Sample, Value
from store.schema.time import SECOND
from store.zoom_requests import ZoomRequest, ZoomRequestSource

log = logging.getLogger(__name__)

_MOST_ROWS = 4096
_FAREWELL_S, _TURN_S = 2.0, 0.25


class Zoom:
    """A thread that asks for orders, and obeys one at a time."""

    def __init__(self, config: AgentConfig, orders: ZoomRequestSource, open_source: Callable[[str], Source]) -> None:
        self._config, self._zoom_requests, self._open = config, orders, open_source
        self._unsigned = 0
        """Time of the newest request that was refused for its signature, Unix ns."""
        hourly = {"": config.zoom_seconds_per_hour, PROFILE: config.profile_seconds_per_hour}
        self._budgets = {name: Budget(most, most, time.monotonic()) for name, most in hourly.items()}
        self._rows: deque[Sample] = deque(maxlen=_MOST_ROWS)
        self.spent = 0.0
        """Seconds in which a source was read quickly."""
        self.refused = self.failures = 0
        self.error = ""
        self._reported = (0.0, 0, 0)
        self._stop, self._chance = threading.Event(), Random()
        self._thread = threading.Thread(target=self._run, name="zoom", daemon=True)
        self._thread.start()

    def take(self) -> list[Sample]:
        """The quick rows since the last call, and, where there is news, a row on how it fares."""
        rows = [self._rows.popleft() for _ in range(len(self._rows))]
        state = (self.spent, self.refused, self.failures)
        if state == self._reported:
            return rows
        self._reported = state
        values: dict[str, Value] = {
            "source": "zoom",
            "success": float(not self.error),
            "failures_total": self.failures,
            "zoomed_seconds_total": self.spent,
            "refused_total": self.refused,
            "error": self.error or None,
        }
        return [*rows, Sample("source", values)]

    def close(self) -> None:
        """End the thread; one that hangs is left behind, it ends with the process."""
        self._stop.set()
        self._thread.join(_FAREWELL_S)

    def _run(self) -> None:
        heard = time.time_ns()  # what was ordered before is for an agent that is no more
        # Not all agents of a fleet at once.
        while not self._stop.wait(self._zoom_requests.every_s * self._chance.uniform(0.75, 1.25)):
            try:
                given = self._zoom_requests.read(max(heard, time.time_ns() - APART_NS))
            except OSError as error:
                self._fail(str(error))
                continue
            signed = [order for order in given if self._is_signed(order)]
            # A time that is far ahead must not hide what is ordered until then.
            heard = max([heard, *(min(order.time, time.time_ns()) for order in signed)])
            for order in signed:
                self._heed(order)
        self._zoom_requests.close()

    def _is_signed(self, order: ZoomRequest) -> bool:
        """Whether the detector has signed it; what it has not is read at each turn, and refused once."""
        try:
            if self._zoom_requests.key.signed(order):
                return True
            reason = "the detector has not signed it for this machine"
        except StoreError as error:
            reason = str(error)
        if order.time > self._unsigned:
            self._unsigned = order.time
            self._refuse(reason)
        return False

    def _refuse(self, reason: str) -> None:
        self.refused, self.error = self.refused + 1, f"an order was refused: {reason}"
        log.warning("zoom: %s", self.error)

    def _heed(self, order: ZoomRequest) -> None:
        """Obey an order, or say why not."""
        now = time.time_ns()
        reason = refusal(order, self._config, now)
        seconds = 0.0 if reason else self._granted(order, now)
        if not reason and seconds < 1.0:
            reason = f"the budget of {self._budget(order).most:g} s an hour is spent"
        if reason:
            self._refuse(reason)
            return
        log.info("zoom: %s is read many times a second for %.0f s", order.source, seconds)
        try:
            source = self._open(order.source)
        except Exception as error:  # a source may fail in any way it likes; the usual reading goes on
            self._fail(f"{order.source} cannot be opened: {error}")
            return
        try:
            if isinstance(source, ProfileWindow):
                self._profile(order, source)
            else:
                self._look(order, source, time.monotonic() + seconds)
        except Exception as error:
            self._fail(f"{order.source}: {type(error).__name__}: {error}")
        finally:
            source.close()

    def _budget(self, order: ZoomRequest) -> Budget:
        return self._budgets.get(order.source, self._budgets[""])

    def _granted(self, order: ZoomRequest, now: int) -> float:
        """The seconds that the budget has for it; of a window all or none, since the machines have it together."""
        budget, clock = self._budget(order), time.monotonic()
        wanted = (order.until - (order.begin or now)) / SECOND
        return budget.take(wanted, clock) if order.source != PROFILE or budget.has(wanted, clock) else 0.0

    def _profile(self, order: ZoomRequest, source: ProfileWindow) -> None:
        """Wait for the window, and for what comes of it."""
        self.error = ""
        self._rows.extend(source.start(order.begin, order.until, order.hertz, time.time_ns()))
        self.spent = round(self.spent + (0 if source.done else (order.until - order.begin) / SECOND), 3)
        while not source.done and not self._stop.wait(_TURN_S):
            self._rows.extend(source.read(time.time_ns()))

    def _look(self, order: ZoomRequest, source: Source, end: float) -> None:
        """Read the source until the time is over, as often as asked and as the share of a core allows."""
        self.error = ""
        start, hertz = time.monotonic(), min(order.hertz, HERTZ if order.source == STACKS else self._config.zoom_hertz)
        while start < end and not self._stop.is_set():
            now = time.time_ns()
            self._rows.extend(quick(list(source.read(now)), order.source, now))
            took = time.monotonic() - start
            self._stop.wait(max(1 / hertz, took / self._config.zoom_share) - took)
            before, start = start, time.monotonic()
            self.spent = round(self.spent + start - before, 3)

    def _fail(self, reason: str) -> None:
        if reason != self.error:
            log.warning("zoom: %s", reason)
        self.failures, self.error = self.failures + 1, reason
