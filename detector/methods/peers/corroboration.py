"""Agreement: what independent witnesses say of one device is added up, so that two of them convict sooner than one.

Evidence is a log-likelihood ratio: of readings that do not depend on each other it adds. Within a witness it does not:
there one cause moves many readings, and the strongest speaks.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from detector.methods.peers.state import NO_TASK, Panel

WITNESSES = (("nccl", "cuda"), ("gpu",))
"""What a process asks of its GPU, seen by probes, and what the driver says of that GPU."""
_LEAST = 0.2
"""Of what convicts: who says less than this is no witness."""


def agreed(panels: Mapping[str, Panel]) -> list[tuple[Panel, int, float]]:
    """Devices that all witnesses together convict and none alone: panel and cell of the strongest, and the sum.

    The sum is in multiples of what convicts.
    """
    said = [_strongest([panels[table] for table in tables if table in panels]) for tables in WITNESSES]
    found = []
    for device in set.intersection(*(set(one) for one in said)):
        best, *others = sorted((one[device] for one in said), key=lambda one: -one[0])
        weight = best[0] + sum(other[0] for other in others)
        if best[0] < 1 <= weight:
            found.append((best[1], best[2], weight))
    return found


def _strongest(panels: list[Panel]) -> dict[tuple[str, str | None], tuple[float, Panel, int]]:
    """By machine and device, the cell with the most evidence that is worth a word."""
    found: dict[tuple[str, str | None], tuple[float, Panel, int]] = {}
    for panel in panels:
        for at in np.flatnonzero(panel.weight >= _LEAST).tolist():
            entity, weight = int(panel.cells.entity[at]), float(panel.weight[at])
            who = panel.window.entities[entity]
            if panel.group[entity] != NO_TASK and (who not in found or weight > found[who][0]):
                found[who] = weight, panel, at
    return found
