"""Share: how each machine does its part of the task beside its peers, over the last minutes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from detector.panel import Panel

Ints = NDArray[np.int64]
SIGNALS = (
    "gpu.duty_cycle_ratio",
    "gpu.graphics_active_ratio",
    "gpu.sm_active_ratio",
    "gpu.power_watts",
    "gpu.tensor_active_ratio",
    "gpu.nvlink_transmit_bytes_total",
    "rdma.transmit_bytes_total",
    "nccl.operations_total",
    "nccl.active_ratio",
    "nccl.host_blocked_seconds_total",
    "cuda.launches_total",
    "cuda.synchronize_seconds_total",
)
"""Readings of a rank that computes, waits or communicates for longer than the others."""
DONE = (4, 5, 6, 7, 10)
"""Of these, what is done in proportion to the iterations."""


@dataclass(slots=True)
class Share:
    """Relative differences from the peers' median, a row each block of time; a machine's devices are averaged."""

    machines: dict[str, int] = field(default_factory=dict)
    values: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 0, len(SIGNALS)), np.float32))
    """[block, machine, signal], NaN where unknown."""

    def note(self, panels: Mapping[str, Panel], blocks: int) -> None:
        """Take in how things stand, and keep so many blocks with it."""
        for panel in panels.values():
            for name, _ in panel.window.entities if len(self.machines) < 1 + panel.machine.max(initial=0) else ():
                self.machines.setdefault(name, len(self.machines))
        new = np.full((len(self.machines), len(SIGNALS)), np.nan, np.float32)
        for at, signal in enumerate(SIGNALS):
            table, _, metric = signal.partition(".")
            panel = panels.get(table)
            if panel is not None and metric in panel.window.metrics[: len(panel.center)]:
                self._fill(new[:, at], panel, panel.window.metrics.index(metric))
        kept = self.values[max(0, len(self.values) + 1 - blocks) :]
        wide = np.full((len(kept), *new.shape), np.nan, np.float32)
        wide[:, : kept.shape[1]] = kept
        self.values = np.concatenate([wide, new[None]])

    def let_go(self, gone: Iterable[str]) -> None:
        """Forget machines that are gone for good."""
        names = frozenset(gone)
        left = [name for name in self.machines if name not in names]
        self.values = self.values[:, [self.machines[name] for name in left]]
        self.machines = {name: at for at, name in enumerate(left)}

    def _fill(self, out: NDArray[np.float32], panel: Panel, metric: int) -> None:
        count = panel.strength.shape[1]
        center = panel.center[metric, panel.group[:count]]
        with np.errstate(divide="ignore", invalid="ignore"):
            apart = (panel.values[metric, :count] - center) / np.abs(center)
        apart[panel.group[:count] < 0] = np.nan
        known = np.isfinite(apart)
        owner = np.array([self.machines[name] for name, _ in panel.window.entities[:count]], np.int64)[known]
        total, held = np.bincount(owner, apart[known], len(out)), np.bincount(owner, minlength=len(out))
        np.divide(total, held, out=out, where=held > 0, casting="same_kind")
