"""Share: how each machine does its part of the task beside its peers, over the last minutes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detector.harm.rhythm import trailing_mean
from detector.methods.peers.state import Panel
from detector.stats.arrays import Bools, Ints
from detector.stats.robust import mad, shift_down

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
BUSY = (0, 1, 2, 3, 8, 9, 11)
"""Of these, what is low on a rank that is held up before its GPU has work."""
DONE = (4, 5, 6, 7, 10)
"""Of these, what is done in proportion to the iterations."""
_ON, _OFF = 2, 6
"""Blocks of time with and without a deviation that it takes to compare them."""
_OFF_SHARE = 0.25
"""The least ratio of these: where nearly all that is remembered is with it, the rest says little."""
_PLACEBOS = 48
"""Other machines in which the same blocks are compared, at most ..."""
_FEWEST = 2
"""... and at least."""
LEAST, _ALONE = 0.01, 1.5
"""The least change that counts; times as far as the next machine, both best signals added."""
_SURE, _AGREES, _SURE_ALONE = 5.0, 3.0, 12.0
"""Spreads over the other machines of the best signal, of one that agrees with it, and of one that needs no other."""
_LEAST_ERROR = 0.001


@dataclass(slots=True)
class Share:
    """Relative differences from the peers' median, a row each block of time; a machine's devices are averaged."""

    machines: dict[str, int] = field(default_factory=dict)
    values: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 0, len(SIGNALS)), np.float32))
    """[block, machine, signal], NaN where unknown."""
    owners: dict[str, Ints] = field(default_factory=dict)
    """By table, the number of each entity's machine."""

    def update(self, panels: Mapping[str, Panel], blocks: int) -> None:
        """Sample the panels, and remember the last `blocks` samples."""
        owners = {table: self._owners(table, panel) for table, panel in panels.items()}
        new = np.full((len(self.machines), len(SIGNALS)), np.nan, np.float32)
        for at, signal in enumerate(SIGNALS):
            table, _, metric = signal.partition(".")
            panel = panels.get(table)
            if panel is not None and (row := panel.row_of(metric)) is not None:
                _fill(new[:, at], panel, row, owners[table])
        recent = self.values[max(0, len(self.values) + 1 - blocks) :]
        wide = np.full((len(recent), *new.shape), np.nan, np.float32)
        wide[:, : recent.shape[1]] = recent
        self.values = np.concatenate([wide, new[None]])

    def held_up(self, machine: str, on: Bools, counts: Bools, iteration: int, least: float = LEAST) -> bool | None:
        """Whether a machine, more than any other, has less to do beside its peers when `on` [block].

        By `least` of what it usually has; blocks that do not count (`counts` [block]) are left out, and means over an
        `iteration` (blocks) are compared: of a long one only seconds show who is late. The same blocks are
        compared on other machines: what happens to several of them at once, or by chance, is no effect of this one.
        None: nothing tells.
        """
        at, on = self.machines.get(machine), on[counts]
        if at is None or on.sum() < _ON or (~on).sum() < max(_OFF, _OFF_SHARE * on.sum()):
            return None
        others = [other for other in range(len(self.machines)) if other != at]
        some = [at, *others[:: max(1, len(others) // _PLACEBOS)]]
        values = self.values[counts][:, some][:, :, BUSY]
        values = trailing_mean(values.reshape(len(values), -1), iteration).reshape(values.shape)
        known = ~np.isnan(values)
        usable = (known[on].mean(0) >= 0.5) & (known[~on].mean(0) >= 0.5)
        signals = np.flatnonzero(usable[0] & (usable[1:].sum(0) >= _FEWEST))
        there = usable[:, signals].all(1)
        if not len(signals) or there.sum() <= _FEWEST:
            return None
        return _stands_out(values[:, there][:, :, signals], on, least)

    def evict(self, gone: Iterable[str]) -> None:
        """Forget machines that are gone for good."""
        names = frozenset(gone)
        left = [name for name in self.machines if name not in names]
        self.values = self.values[:, [self.machines[name] for name in left]]
        self.machines = {name: at for at, name in enumerate(left)}
        self.owners.clear()

    def _owners(self, table: str, panel: Panel) -> Ints:
        """[entity]: the number of its machine."""
        names = [name for name, _ in panel.window.entities]
        if len(self.owners.get(table, ())) != len(names):
            numbers = [self.machines.setdefault(name, len(self.machines)) for name in names]
            self.owners[table] = np.array(numbers, np.int64)
        return self.owners[table]


def _stands_out(values: NDArray[np.floating[Any]], on: Bools, least: float) -> bool:
    """Whether the first machine of values [block, machine, signal] falls farther than all others when `on` [block]."""
    blocks, machines, signals = values.shape
    shift = shift_down(values.reshape(blocks, -1), on, _LEAST_ERROR, by_off=True)
    size, error = (part.reshape(machines, signals) for part in (shift.size, shift.error))
    away = size - np.median(size[1:], axis=0)
    far = np.where(away > least, away / np.maximum(mad(size[1:]), error), 0.0)
    order = np.sort(far, axis=1)
    best = order[:, -2:].sum(1)
    agree = signals > 1 and order[0, -1] > _SURE and order[0, -2] > _AGREES
    sure = agree or order[0, -1] > _SURE_ALONE
    return bool(sure and best[0] > _ALONE * best[1:].max())


def _fill(out: NDArray[np.float32], panel: Panel, metric: int, owners: Ints) -> None:
    """The mean over each machine's devices of how far they are from their peers' median, as a share of it."""
    count = panel.deviation.shape[1]
    values = panel.worked(np.array([metric]), panel.values)
    center = panel.groups.each(panel.groups.middle(values))[0, :count]
    with np.errstate(divide="ignore", invalid="ignore"):
        apart = (values[0, :count] - center) / np.abs(center)
    apart[panel.group[:count] < 0] = np.nan
    known = np.isfinite(apart)
    owner = owners[:count][known]
    total, held = np.bincount(owner, apart[known], len(out)), np.bincount(owner, minlength=len(out))
    np.divide(total, held, out=out, where=held > 0, casting="same_kind")
