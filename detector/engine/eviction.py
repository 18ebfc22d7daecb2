"""Eviction: machines, devices and ranks that are gone are forgotten, so that memory does not grow for months."""

from __future__ import annotations

from collections.abc import Sequence

from detector.methods.contract import Method
from detector.topology.tasks import Tasks
from store.schema.time import NEVER, SECOND

GONE_NS = 3 * 86400 * SECOND
"""A machine that was not read for so long is forgotten, with its facts: over a weekend it is known to be silent."""
SWEEP_NS = 3600 * SECOND
"""How often that is checked."""


def evict(tasks: Tasks, methods: Sequence[Method]) -> None:
    """Forget what was not read for three days while others were; a machine that comes back is new."""
    before = max((method.newest() for method in methods), default=NEVER) - GONE_NS
    for method in reversed(methods):  # the peers are the first method: their groups follow the tasks that are left
        method.evict(before, tasks)
