"""Leaving: machines, devices and ranks that went for good are forgotten, so that memory does not grow for months."""

from __future__ import annotations

from collections.abc import Sequence

from detector.config import Config
from detector.methods.evidence.method import Evidence
from detector.methods.peers.assignment import seat
from detector.methods.peers.method import Peers
from detector.methods.progress.method import Progress
from detector.topology.tasks import Tasks
from store.schema.time import NEVER, SECOND

GONE_NS = 3 * 86400 * SECOND
"""Who was not read for so long is forgotten, and what is held against it: over a weekend it is known to be silent."""
SWEEP_NS = 3600 * SECOND
"""How often that is looked for."""


def let_go(tasks: Tasks, methods: Sequence[object], config: Config) -> None:
    """Forget whom nothing was read of for three days while others were read; who comes back is new."""
    before = max((method.life.newest() for method in methods if isinstance(method, Evidence)), default=NEVER) - GONE_NS
    for method in methods:
        if isinstance(method, Evidence):
            tasks.let_go(method.let_go(before), before)
        elif isinstance(method, Progress) and (left := method.evict(before)):
            tasks.roles.let_go(left, method.ranks.machines)
    for method in methods:
        if isinstance(method, Peers):
            for panel in method.panels.values():
                panel.let_go(before)
                seat(panel, tasks, config)
