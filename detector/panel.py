"""Panel: all that the comparison of peers remembers of one table, and what can be read off it about one machine."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detector.continuity import LOW, Cells, Streaks, nothing
from detector.dissimilarity import Norm
from detector.embedding import Embedding
from detector.fusion import Fusion
from detector.peer_groups import Groups, groups_of, middle
from detector.rows import NEVER
from detector.slowing import Slowing
from detector.verdict import Finding
from detector.window import Window
from detector.words import comparison
from store.catalogue import METRICS

Ints = NDArray[np.int64]
NO_TASK = -1
_BLOCKED = "host_blocked_seconds_total"
_PACE = "operations_total"
_STANDS = 0.1  # of the usual pace
COMES_LATE = ("nccl.active_ratio", f"nccl.{_BLOCKED}")
"""Low on whoever comes late to a collective: the others wait for it, it waits for nobody."""


@dataclass(slots=True)
class Panel:
    """All that is remembered of one table; arrays are [metric, entity]."""

    window: Window
    embedding: Embedding = field(default_factory=Embedding)
    norm: Norm = field(default_factory=Norm)
    streaks: Streaks = field(default_factory=Streaks)
    fusion: Fusion = field(default_factory=Fusion)
    slowing: Slowing = field(default_factory=Slowing)
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


def reason(panel: Panel, cell: tuple[int, int, int]) -> str:
    """Why a rank comes late to its communicators, which shows as operations that are short at work there.

    A slow GPU is waited for by its own host before the operation begins, so the host waits less behind it. A late
    host waits as long as its peers, as far as entries tell: its own lateness is taken for waiting.
    """
    _, _, entity = cell
    metrics = panel.window.metrics
    if not all(metric in metrics for metric in ("active_ratio", _BLOCKED)):
        return ""
    active, blocked = (panel.strength[metrics.index(metric), entity] for metric in ("active_ratio", _BLOCKED))
    if not active < 0 or np.isnan(blocked):
        return ""
    return "; it comes late: its GPU computes longer" if blocked < active / 3 else "; its host comes late"


def look_at_pace(panel: Panel, center: NDArray[Any], now: int) -> None:
    """Note which tasks have lost pace, as far as the peers' operations tell; `center` is [metric, group]."""
    if _PACE in panel.window.metrics:
        panel.slowing.look(_pace(panel, center), now)


def slows(panel: Panel, cells: Cells, now: int, slack: int) -> NDArray[np.bool_]:
    """[cell]: whether its task may have lost pace by it: both began within `slack` ns, and nobody else comes late.

    What a rank reads that slows nobody is no fault yet, be it odd: congestion and bursts pass.
    """
    if _PACE not in panel.window.metrics:
        return np.ones(len(cells.entity), bool)
    since = np.where(panel.streaks.evidence[cells.at] > 0, panel.streaks.since[cells.at], now)
    late = is_prompt(panel)[cells.metric] & (cells.side == LOW) & (cells.strength >= 1)
    elsewhere = np.zeros(len(late), bool)
    for entity in cells.entity[late]:
        elsewhere |= (panel.team[cells.entity] == panel.team[entity]) & (
            panel.machine[cells.entity] != panel.machine[entity]
        )
    return panel.slowing.began_with(since, panel.group[cells.entity], slack) & ~elsewhere


def is_prompt(panel: Panel) -> NDArray[np.bool_]:
    """[metric]: whether a low reading is that of whoever comes late."""
    return np.array([f"{panel.window.table}.{name}" in COMES_LATE for name in panel.window.metrics], bool)


def standing_tasks(panel: Panel, center: NDArray[Any]) -> list[str]:
    """The tasks in which hardly an operation is called: what is read of them now is not how they run."""
    if panel.window.table != "nccl" or _PACE not in panel.window.metrics:
        return []
    below = _pace(panel, center) < _STANDS
    move = {task for (task, _), stands in zip(panel.titles, below.tolist(), strict=False) if not stands}
    return [panel.tasks[task] for task in {task for task, _ in panel.titles} - move]


def _pace(panel: Panel, center: NDArray[Any]) -> NDArray[np.float64]:
    """[group]: its operations as a share of what is usual."""
    row = panel.window.metrics.index(_PACE)
    level = panel.groups.middle(panel.norm.level[row : row + 1, : len(panel.group)])[0]
    share: NDArray[np.float64] = center[row] / np.where(level > 0, level, np.nan)
    return share


def is_whole_machine(panel: Panel, cell: tuple[int, int, int]) -> bool:
    """Whether half of the machine's devices of this table are suspect alike: then the machine is meant."""
    side, metric, entity = cell
    mine = np.flatnonzero(panel.machine == panel.machine[entity])
    evidence = panel.streaks.evidence[side, metric, mine]
    alike = int((evidence >= panel.streaks.evidence[cell] / 2).sum())
    return len(mine) > 2 and 2 * alike > len(mine)


def at_port(finding: Finding, panels: Mapping[str, Panel]) -> Finding:
    """A rank is late where its GPU or its port is at fault: the port is named if it alone is in a bad state."""
    verdict, panel = finding.verdict, panels.get("rdma")
    if not verdict.metric.startswith("nccl.") or panel is None or not panel.strength.size:
        return finding
    ports, gpus = state(panel, verdict.machine), panels.get("gpu")
    worst = ports.max(0, initial=0.0)
    if len(worst) < 2 or worst.max() < 1 or 2 * np.sort(worst)[-2] > worst.max():
        return finding
    if gpus is not None and gpus.strength.size and state(gpus, verdict.machine).max(initial=0.0) > worst.max():
        return finding
    entity = [at for at, who in enumerate(panel.window.entities) if who[0] == verdict.machine][worst.argmax()]
    metric = int(ports[:, worst.argmax()].argmax())
    key, device = f"rdma.{panel.window.metrics[metric]}", panel.window.entities[entity][1]
    others = np.flatnonzero((panel.group == panel.group[entity]) & (np.arange(len(panel.group)) != entity))
    sides = float(panel.values[metric, entity]), float(middle(panel.values[metric, others][None])[0])
    message = f"{verdict.message}; {comparison(device or '', key, *sides, len(others))}"
    return replace(finding, verdict=replace(verdict, device=device, message=message))


def state(panel: Panel, machine: str) -> NDArray[np.float64]:
    """[metric, device of the machine]: how far each is in a bad state; what moves with the load either way is none."""
    mine = [at for at, who in enumerate(panel.window.entities) if who[0] == machine and at < panel.strength.shape[1]]
    names = panel.window.metrics[: len(panel.strength)]
    bad = [METRICS[key].bad if (key := f"{panel.window.table}.{name}") in METRICS else "none" for name in names]
    sign = np.array([{"high": 1.0, "low": -1.0}.get(word, 0.0) for word in bad])
    found: NDArray[np.float64] = np.nan_to_num(panel.strength[:, mine] * sign[:, None])
    return found
