"""StepWatch: notices that someone has set the wall clock."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from store.schema.time import SECOND

log = logging.getLogger(__name__)

LEAST_NS = 5 * SECOND
"""A smaller step is within what readings may be late."""


def _boot_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class StepWatch:
    """Compares the wall clock with the time since boot, which no one sets and which goes on during a suspend."""

    def __init__(self, wall: Callable[[], int] = time.time_ns, boot: Callable[[], int] = _boot_ns) -> None:
        self._wall, self._boot = wall, boot
        self._offset = wall() - boot()

    def step(self) -> int:
        """By how much (ns) the clock was set since the last step; 0: it was not."""
        offset = self._wall() - self._boot()
        step = offset - self._offset
        if abs(step) < LEAST_NS:
            return 0  # clocks that are slewed add up to a step in the end
        self._offset = offset
        log.warning("the clock was set %s by %d s", "forward" if step > 0 else "back", abs(step) // SECOND)
        return step
