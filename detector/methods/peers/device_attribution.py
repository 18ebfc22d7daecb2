"""Which device of a machine a deviation belongs to: a GPU, a port, or the machine as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from detector.methods.peers.state import Panel
from detector.model.kinds import is_capacity
from detector.model.text import comparison, subject
from detector.model.verdict import Finding
from detector.stats.grouped import middle
from store.schema.catalogue import METRICS


def is_whole_machine(panel: Panel, cell: tuple[int, int, int]) -> bool:
    """Whether half of the machine's devices of this table are suspect alike: then the machine is meant."""
    side, metric, entity = cell
    devices = np.flatnonzero(panel.machine == panel.machine[entity])
    alike = int((panel.cusum.value[side, metric, devices] >= panel.cusum.value[cell] / 2).sum())
    return len(devices) > 2 and 2 * alike > len(devices)


def attribute_to_port(finding: Finding, panels: Mapping[str, Panel]) -> Finding:
    """A rank is late where its GPU or its port is at fault: the port is named if it alone is in a bad state."""
    verdict, panel = finding.verdict, panels.get("rdma")
    if not verdict.metric.startswith("nccl.") or panel is None or not panel.deviation.size:
        return finding
    ports, gpus = adverse_deviation(panel, verdict.machine), panels.get("gpu")
    entity = _alone_at_fault(panel, verdict.machine, ports)
    if entity is None:
        return finding
    if (
        gpus is not None
        and gpus.deviation.size
        and adverse_deviation(gpus, verdict.machine).max(initial=0.0) > ports.max()
    ):
        return finding
    metric = int(ports.max(1).argmax())
    key, device = f"rdma.{panel.window.metrics[metric]}", panel.window.entities[entity][1]
    others = np.flatnonzero((panel.group == panel.group[entity]) & (np.arange(len(panel.group)) != entity))
    sides = float(panel.values[metric, entity]), float(middle(panel.values[metric, others][None])[0])
    port = subject("", device).strip()
    message = f"{verdict.message.removesuffix('.')}; {comparison(port, key, *sides, len(others))}"
    return replace(finding, verdict=replace(verdict, device=device, message=message))


def attribute_to_gpu(finding: Finding, panels: Mapping[str, Panel]) -> Finding:
    """A rank for which others wait stands for all that share its way into the machine: the GPU that lost capacity.

    It is named if it alone of its machine has a lower clock, less power or a narrower link than its peers.
    """
    verdict, panel = finding.verdict, panels.get("gpu")
    if not verdict.metric.startswith("nccl.") or panel is None or not panel.deviation.size:
        return finding
    limited = [is_capacity(f"gpu.{name}") for name in panel.window.metrics[: len(panel.deviation)]]
    gpus = adverse_deviation(panel, verdict.machine) * np.array(limited)[:, None]
    entity = _alone_at_fault(panel, verdict.machine, gpus)
    if entity is None:
        return finding
    device = panel.window.entities[entity][1]
    named = subject(verdict.machine, verdict.device), subject(verdict.machine, device)
    return replace(finding, verdict=replace(verdict, device=device, message=verdict.message.replace(*named, 1)))


def _alone_at_fault(panel: Panel, machine: str, bad: NDArray[np.float64]) -> int | None:
    """The one device of a machine that is in a bad state, by deviations [metric, device of the machine]; else None."""
    worst = bad.max(0, initial=0.0)
    if len(worst) < 2 or worst.max() < 1 or 2 * np.sort(worst)[-2] > worst.max():
        return None
    mine = [at for at, who in enumerate(panel.window.entities) if who[0] == machine]
    return mine[int(worst.argmax())]


def adverse_deviation(panel: Panel, machine: str) -> NDArray[np.float64]:
    """[metric, device of the machine]: deviations in the bad direction; 0 for what moves with the load either way."""
    mine = [at for at, who in enumerate(panel.window.entities) if who[0] == machine and at < panel.deviation.shape[1]]
    names = panel.window.metrics[: len(panel.deviation)]
    keys = [f"{panel.window.table}.{name}" for name in names]
    bad = [METRICS[key].direction if key in METRICS else "none" for key in keys]
    sign = np.array([{"high": 1.0, "low": -1.0}.get(word, 0.0) for word in bad])
    found: NDArray[np.float64] = np.nan_to_num(panel.deviation[:, mine] * sign[:, None])
    return found
