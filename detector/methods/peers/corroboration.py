"""Corroboration: evidence of independent tables on one device is added up, so that two raise an alarm sooner than one.

Evidence is a log-likelihood ratio: of independent readings it adds. Within a table it does not: there one cause moves
many readings, and the strongest counts.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from detector.methods.peers.state import NO_TASK, Panel

INDEPENDENT_TABLES = (("nccl", "cuda"), ("gpu",))
"""What a process asks of its GPU, read by probes, and what the driver reads of that GPU."""
_LEAST = 0.2
"""Less evidence than this does not corroborate."""


def corroborated(panels: Mapping[str, Panel]) -> list[tuple[Panel, int, float]]:
    """Devices with an alarm by all tables together and by none alone: panel and cell of the strongest, and the sum."""
    strongest = [_strongest([panels[table] for table in tables if table in panels]) for tables in INDEPENDENT_TABLES]
    found = []
    for device in strongest[0]:
        if not all(device in one for one in strongest):
            continue
        best, *others = sorted((one[device] for one in strongest), key=lambda one: -one[0])
        evidence = best[0] + sum(other[0] for other in others)
        if best[0] < 1 <= evidence:
            found.append((best[1], best[2], evidence))
    return found


def _strongest(panels: list[Panel]) -> dict[tuple[str, str | None], tuple[float, Panel, int]]:
    """By machine and device, the cell with the most evidence, if that is enough to corroborate."""
    found: dict[tuple[str, str | None], tuple[float, Panel, int]] = {}
    for panel in panels:
        for at in np.flatnonzero(panel.evidence >= _LEAST).tolist():
            entity, evidence = int(panel.cells.entity[at]), float(panel.evidence[at])
            name = panel.window.entities[entity]
            if panel.group[entity] != NO_TASK and (name not in found or evidence > found[name][0]):
                found[name] = evidence, panel, at
    return found
