"""Dual-phase replay: which machines to test together so that two rounds of tests name the faulty one.

ByteRobust (SOSP'25, arXiv 2509.16293), section on dual-phase replay: tensor and pipeline groups stay whole, only the
data groups are varied. z machines make n = z / m groups of m = k·PP machines: in the first phase machine x is in the
horizontal group x div m, in the second in the vertical group x mod n. Two machines of one horizontal group differ by
less than m, so with m <= n they are in different vertical groups: one failing group in each phase has one machine in
common.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import ceil, log

import numpy as np
from numpy.typing import NDArray

_DRAWS, _CELLS = 2000, 10**7
"""Random draws of faulty machines, and draws times machines at most: fewer draws in fleets above 5,000 machines."""
_SURE = 0.95


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """The groups of both phases: machines by position from 0 to `machines` - 1."""

    machines: int
    size: int
    """Machines in a group (m)."""
    groups: int
    """Groups in a phase (n)."""

    def horizontal(self) -> NDArray[np.intp]:
        """[machine]: its group in the first phase."""
        return np.arange(self.machines) // self.size

    def vertical(self) -> NDArray[np.intp]:
        """[machine]: its group in the second phase."""
        return np.arange(self.machines) % self.groups

    def check(self, *groups: int) -> None:
        """Raise ValueError for a group that there is not."""
        for group in groups:
            if not 0 <= group < self.groups:
                raise ValueError(f"there is no group {group}: they are numbered from 0 to {self.groups - 1}")

    def suspects(self, horizontal: Collection[int], vertical: Collection[int]) -> NDArray[np.intp]:
        """The machines in a failing group of both phases. Raises ValueError for a group that there is not."""
        self.check(*horizontal, *vertical)
        both = np.isin(self.horizontal(), list(horizontal)) & np.isin(self.vertical(), list(vertical))
        return np.flatnonzero(both)

    def expected_suspects(self, faulty: int, seed: int = 1) -> float:
        """Mean number of suspects with so many faulty machines anywhere, each failing every test of its group."""
        dice = np.random.default_rng(seed)
        draws = min(_DRAWS, max(1, _CELLS // self.machines))
        found = np.argpartition(dice.random((draws, self.machines)), faulty - 1, axis=1)[:, :faulty]
        rows, columns = (np.zeros((draws, self.groups), bool) for _ in range(2))
        draw = np.arange(draws)[:, None]
        rows[draw, self.horizontal()[found]] = True
        columns[draw, self.vertical()[found]] = True
        return float((rows[:, self.horizontal()] & columns[:, self.vertical()]).sum(axis=1).mean())


def plan_replay(machines: int, pipeline: int) -> ReplayPlan:
    """The plan with the smallest number of suspects, then the smallest groups.

    `pipeline` is the number of machines of one pipeline (pipeline stages times machines a stage): a group is a job of
    its own, which needs whole pipelines. Raises ValueError where the machines cannot be divided so.
    """
    if pipeline < 1 or machines % pipeline:
        raise ValueError(f"{machines} machines are not whole pipelines of {pipeline}: name all machines of the job")
    copies = machines // pipeline
    if copies < 2:
        raise ValueError("one pipeline cannot be divided: test its machines one by one (peerwatch check)")
    sizes = [pipeline * k for k in range(1, copies // 2 + 1) if copies % k == 0]
    size = min(sizes, key=lambda m: (max(1, ceil(m * m / machines)), m))
    return ReplayPlan(machines, size, machines // size)


def repeats(reproduces: float) -> int:
    """How often each phase is to be replayed so that a fault shows with 95 % in both, by its chance in one replay."""
    if not 0 < reproduces <= 1:
        raise ValueError(f"{reproduces:g} is no probability above 0: write for example 0.8")
    need = 1 - _SURE**0.5
    return 1 if reproduces >= 1 - need else ceil(log(need) / log(1 - reproduces))
