"""Panel: all that the comparison of peers remembers of one table, and what can be read off it about one machine."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detector.methods.peers.baseline import Norm
from detector.methods.peers.cusum import Cells, Streaks, nothing
from detector.methods.peers.fusion import Fusion
from detector.methods.peers.slow.frozen import Frozen
from detector.methods.peers.slow.lag import Lag
from detector.methods.peers.slow.lasting import Lasting
from detector.methods.peers.smoothing import Embedding
from detector.methods.peers.throughput_loss import Slowing
from detector.stats.arrays import Ints
from detector.stats.grouped import Groups, groups_of
from detector.timeseries.live_window import Window
from store.schema.time import NEVER

NO_TASK = -1


@dataclass(slots=True)
class Panel:
    """All that is remembered of one table; arrays are [metric, entity]."""

    window: Window
    embedding: Embedding = field(default_factory=Embedding)
    norm: Norm = field(default_factory=Norm)
    streaks: Streaks = field(default_factory=Streaks)
    fusion: Fusion = field(default_factory=Fusion)
    slowing: Slowing = field(default_factory=Slowing)
    frozen: Frozen = field(default_factory=Frozen)
    stuck: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool))
    """[entity]: whether its readings repeat themselves."""
    lag: Lag = field(default_factory=Lag)
    lasting: Lasting = field(default_factory=Lasting)
    tasks: list[str] = field(default_factory=list)
    team: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """Each entity's task, an index into `tasks`, or -1."""
    groups: Groups = field(default_factory=lambda: groups_of(np.zeros(0, np.int64)))
    """Who is compared with whom."""
    titles: list[tuple[int, str]] = field(default_factory=list)
    """[group]: its task, an index into `tasks`, and what its members are within it; empty: all there are."""
    machine: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """Each entity's machine as a number."""
    judged_at: int = NEVER
    seated: tuple[int, int] = (-1, -1)
    """For which version of the tasks, and how many entities, `group` holds."""
    values: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    strength: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    center: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    """[metric, group]: where the peers are, the usual offsets taken off."""
    believed: NDArray[np.bool_] = field(default_factory=lambda: np.zeros((0, 0), bool))
    """[metric, group]: whether there are peers to a metric."""
    cells: Cells = field(default_factory=nothing)
    """What speaks against somebody since the last step ..."""
    weight: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    """... and how much, in multiples of what convicts."""

    @property
    def group(self) -> Ints:
        """Each entity's peer group."""
        return self.groups.of

    def let_go(self, before: int) -> None:
        """Forget entities not read since `before` (Unix ns), and the tasks in which nobody is left; seats no one."""
        left = self.window.let_go(before)
        if left is None:
            return
        sums = self.fusion
        for memory in (self.embedding, self.norm, self.streaks, sums.norm, sums.streaks):
            _keep(memory, left)
        self.lasting.keep(left)
        self.frozen.keep(left)
        self.lag = Lag()
        self.stuck = _left(self.stuck, left)
        sums.group, sums.parts = _left(sums.group, left), _left(sums.parts, left)
        sums.cells, sums.weight = _cells_of(sums.cells, sums.weight, left)
        self.values, self.strength = (_left(array, left) for array in (self.values, self.strength))
        self.team, self.machine = _left(self.team, left), _left(self.machine, left)
        self.groups = groups_of(_left(self.group, left))
        used = np.unique(self.team[self.team != NO_TASK])
        self.tasks = [self.tasks[at] for at in used.tolist()]
        self.team = np.where(self.team == NO_TASK, NO_TASK, np.searchsorted(used, self.team))
        self.titles, self.seated = [], (-1, -1)
        self.cells, self.weight = _cells_of(self.cells, self.weight, left)

    def stands(self, standing: Collection[str]) -> NDArray[np.bool_]:
        """[1, group]: whether its task is one of these; False for who has no group."""
        return np.array([[self.tasks[task] in standing for task, _ in self.titles] + [False]], bool)


def _left(array: NDArray[Any], left: Ints) -> NDArray[Any]:
    """The array without those along its last axis that are not left; who came later may not be in it yet."""
    return array[..., left[left < array.shape[-1]]]


def _cells_of(cells: Cells, weight: NDArray[np.float64], left: Ints) -> tuple[Cells, NDArray[np.float64]]:
    """What speaks against those that are left, by their new numbers."""
    there = np.isin(cells.entity, left)
    found = Cells(*(getattr(cells, part.name)[there] for part in fields(cells)))
    found.entity = np.searchsorted(left, found.entity)
    return found, weight[there]


def _keep(memory: Embedding | Norm | Streaks, left: Ints) -> None:
    """The same with all arrays of a memory, whose last axis are entities."""
    for part in fields(memory):
        if isinstance(array := getattr(memory, part.name), np.ndarray):
            setattr(memory, part.name, _left(array, left))
