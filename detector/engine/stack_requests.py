"""Rounds of stacks, asked for where a task is slow or its traffic has stopped: `peerwatch suspects stacks` reads them.

ByteRobust (SOSP'25, arXiv 2509.16293) takes stacks after ten minutes without RDMA traffic, or when a job becomes slow,
in five rounds ten seconds apart.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from detector.config import Config
from detector.model.verdict import RANK, Verdict
from store.schema.time import NEVER, SECOND
from store.zoom_requests import ZoomRequest

TRAFFIC = "rdma.transmit_bytes_total"
"""Metric of a verdict on a port through which nothing flows any more."""
_ORDER_S, _HERTZ = 75.0, 0.1
_REST_S = 1800.0
"""Between two orders for one task."""


@dataclass(slots=True)
class StackPlanner:
    """By task, when its stacks were last asked for (Unix ns)."""

    config: Config
    asked: dict[str, int] = field(default_factory=dict)

    def orders(
        self, now: int, verdicts: Iterable[Verdict], machines_of: Callable[[str], Collection[str]]
    ) -> list[tuple[str, ZoomRequest]]:
        """Machines and what to request of them at `now` (Unix ns) after new verdicts; `machines_of` is by task."""
        found: list[tuple[str, ZoomRequest]] = []
        for verdict in verdicts if self.config.zoom_seconds > 0 else ():
            meant = verdict.kind == "progress" or verdict.metric == TRAFFIC
            rested = now - self.asked.get(verdict.task, NEVER) >= _REST_S * SECOND
            if meant and rested and RANK[verdict.level] >= RANK["warn"]:
                self.asked = {task: at for task, at in self.asked.items() if now - at < _REST_S * SECOND}
                self.asked[verdict.task] = now
                order = ZoomRequest(now, "stacks", _HERTZ, now + round(_ORDER_S * SECOND))
                found += [(machine, order) for machine in sorted(machines_of(verdict.task))]
        return found
