"""What a zoom may cost: which requests are served, for how long, how often, and which rows come of it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from agent.config import AgentConfig
from store.schema.catalogue import METRICS, TABLES, ZOOM, ZOOMED
from store.schema.sample import Sample
from store.schema.time import SECOND
from store.zoom_requests import ZoomRequest

MOST_S = 60.0
"""No single order lasts longer."""
APART_NS = 120 * SECOND
"""An order that was given longer ago, or later than now by the machine's clock, is not obeyed: clocks that differ by
more than this say nothing of each other."""
MOST_STACKS_S = 90.0
"""Five rounds ten seconds apart, and the time until an agent hears of them."""
STACKS = "stacks"
"""The source that gives rounds of stacks instead of quick readings."""
PROFILE = "profile"
"""The source that samples functions in one window, which all machines begin at the same time."""
_AHEAD_S = 60.0
"""How long before its window a profile may be asked for."""
_COLUMNS = {
    table: frozenset({*TABLES[table].keys, *(m.name for m in METRICS.values() if m.table == table and m.compared)})
    for table in ZOOMED
}
"""The columns that are zoomed: those that are compared."""


@dataclass(slots=True)
class Budget:
    """Seconds that may be spent, earned back within an hour; `at` is when that was last reckoned, in seconds."""

    most: float
    left: float
    at: float

    def has(self, seconds: float, now: float) -> bool:
        """Whether all of these seconds may be spent."""
        self.left = min(self.most, self.left + max(0.0, now - self.at) * self.most / 3600)
        self.at = now
        return seconds <= self.left

    def take(self, seconds: float, now: float) -> float:
        """How many of these seconds may be spent."""
        self.has(seconds, now)
        granted = min(seconds, self.left)
        self.left -= granted
        return granted


def refusal(order: ZoomRequest, config: AgentConfig, now: int) -> str:
    """Why an order is not obeyed at `now` (Unix ns); empty where it is."""
    if order.source == PROFILE:
        return _no_profile(order, config, now)
    if not config.zoom_hertz:
        return "zooms are off here: agent.zoom_hertz is 0"
    if order.source not in (*ZOOMED, STACKS) or order.source not in config.sources:
        return f"no source {order.source[:40]!r} is read here that can be read faster"
    if not (math.isfinite(order.hertz) and order.hertz > 0):
        return f"{order.hertz:g} readings a second are none"
    if abs(now - order.time) > APART_NS:
        return f"it was given {(now - order.time) / SECOND:.0f} s ago by this machine's clock"
    most = MOST_STACKS_S if order.source == STACKS else MOST_S
    if not 0 < order.until - now <= most * SECOND:
        return f"it is to last {(order.until - now) / SECOND:.0f} s, and not more than {most:g} are given"
    return ""


def _no_profile(order: ZoomRequest, config: AgentConfig, now: int) -> str:
    if not config.profile_seconds_per_hour:
        return "profiles are off here: set agent.profile_seconds_per_hour (120, say) and restart the agent"
    if not (math.isfinite(order.hertz) and order.hertz >= 1):
        return f"{order.hertz:g} samples a second are too few"
    if abs(now - order.time) > APART_NS:
        return f"it was given {(now - order.time) / SECOND:.0f} s ago by this machine's clock"
    ahead, seconds = (order.begin - now) / SECOND, (order.until - order.begin) / SECOND
    if not 0 < ahead <= _AHEAD_S:
        return f"its window begins in {ahead:.0f} s by this machine's clock: 0 to {_AHEAD_S:g} are possible"
    if not 1 <= seconds <= MOST_S:
        return f"its window is to last {seconds:.0f} s: 1 to {MOST_S:g} are possible"
    return ""


def quick(samples: list[Sample], table: str, now: int) -> Iterator[Sample]:
    """A reading as rows of the table for quick ones; events and what is not judged are left to the usual reading.

    Rows of stacks stay what they are.
    """
    for sample in samples:
        if table == STACKS:
            yield sample
        elif sample.table == table:
            values = {name: value for name, value in sample.values.items() if name in _COLUMNS[table]}
            yield Sample(f"{table}{ZOOM}", values, now)
