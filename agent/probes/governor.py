"""The share of a core that probes take of each training process: above a limit the dearest ones sample.

A process loses (hits a second) x (cost of a hit). Probes on NCCL's calls are suspended by agent/nccl/probe_throttle.py,
since memory shows the same, those on garbage collections by agent/python_gc/gc_probes.py, and switches of threads go
uncounted by agent/probes/switch_limit.py; all ask here. Those on CUDA's calls are put on in windows only, so many that
what they take on average is the limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agent.probes.attachments import Attachments
from agent.probes.groups import CALLS, CUDA, GROUPS, LIFE, WORDS
from agent.probes.hit_cost import HitCost
from agent.probes.library import Library
from agent.process.procfs import Process
from bpf.maps import Map

FAST_S, CALM_S = 5.0, 10.0
"""How long probes must take too much before they are suspended, and little enough before they stay on again."""
SAMPLE_S, WINDOW_S = 2.0, 4.0
"""In a window: for how long probes must take too much before they are suspended, and about how long it lasts then."""
SPARSE_S, AGAIN_S = 60.0, 600.0
"""The longest pause for which the counts of windows stand, and the longest of all."""


@dataclass(slots=True)
class _GroupState:
    """What is remembered of one group of one library; times in monotonic seconds."""

    since: float
    """When its probes were put on, or suspended."""
    suspended: bool = False
    partial: bool = False
    """They were suspended since they were put on for good: the counts have gaps."""
    fast_since: float | None = None
    pause_s: float = AGAIN_S
    """How long they are suspended between two windows."""
    ratio: float = 1.0
    """Share of the time in which they are on."""
    taken: dict[int, float] = field(default_factory=dict)
    """By process, the share of a core that they take on average."""


@dataclass(frozen=True, slots=True)
class Window:
    """How a group of probes samples."""

    on: bool
    """Whether it is on now."""
    ratio: float
    """Share of the time in which it is."""


class ProbeGovernor:
    """Knows what probes take of each process, and which of them have to go.

    `processes` and `slots` are the kernel's arrays; with `calls_stay`, probes on NCCL's calls are not to be suspended.
    """

    def __init__(
        self,
        share: float,
        cost: HitCost,
        attachments: Attachments,
        processes: Map,
        slots: Map,
        calls_stay: bool = False,
    ) -> None:
        self.share, self.cost, self._calls_stay = share, cost, calls_stay
        self._attachments, self._processes, self._slots = attachments, processes, slots
        self._before: tuple[float, dict[int, NDArray[np.int64]]] = 0.0, {}
        self._shares: dict[int, NDArray[np.float64]] = {}
        self._reported: dict[int, dict[int, float]] = {}
        self._fixed: dict[int, set[int]] = {}
        self._states: dict[tuple[str, int], _GroupState] = {}
        self._partial: dict[Process, set[int]] = {}
        self._windows: dict[Process, dict[int, Window]] = {}
        self._means: dict[int, dict[int, float]] = {}

    def update(self, clock: float) -> None:
        """Look at the hits of all processes, at that time (monotonic seconds); suspend CUDA probes or resume them."""
        libraries = [one for one in tuple(self._attachments.libraries.values()) if one.state == "on"]
        self._shares = self._measure(clock, libraries)
        self._fixed = {
            user.pid: {CALLS} for one in libraries if one.remark or self._calls_stay for user in tuple(one.users)
        }
        places = {(one.identity, group): one for one in libraries for group in one.functions if group in CUDA}
        self._states = {place: self._states.get(place) or _GroupState(clock) for place in places}
        for (name, group), library in places.items():
            self._decide(library, group, self._states[name, group], clock)
        self._note(places)

    def report(self, pid: int, group: int, share: float) -> None:
        """The share of a core that a group takes which is counted apart."""
        self._reported.setdefault(pid, {})[group] = share
        if pid in self._shares:
            self._shares[pid][group] = share

    def exceeds(self, pid: int, group: int, resumed: bool = False) -> bool:
        """Whether the probes on a process take too much, and those of the group the most of all that can be suspended.

        Those that were suspended a moment ago count twice: they stay on once they cost half as much.
        """
        parts = self._shares.get(pid)
        if parts is None or not parts[group]:
            return False
        free = [one for one in range(GROUPS) if one not in (LIFE, *self._fixed.get(pid, ())) or one == group]
        total = float(parts.sum() + (parts[group] if resumed else 0.0))
        return total > self.share and bool(parts[group] == parts[free].max())

    def partial(self, process: Process) -> frozenset[int]:
        """The groups of CUDA calls that go uncounted now, or did a moment ago and may again."""
        return frozenset(self._partial.get(process, ()))

    def windows(self, process: Process) -> dict[int, Window]:
        """The groups of CUDA calls with counts that stand for the time between windows too."""
        return self._windows.get(process, {})

    def of_process(self, pid: int) -> float:
        """Share of a core that all probes take of a process: now, and on average where they sample."""
        return float(self._mean(pid).sum())

    def of_group(self, group: int) -> float:
        """The same of one group, of the process that loses the most to it."""
        return max((float(self._mean(pid)[group]) for pid in self._shares), default=0.0)

    def of_library(self, library: Library) -> float:
        """The same of the probes on a library, of the process that loses the most."""
        groups, users = list(library.functions), [user.pid for user in tuple(library.users)]
        return max((float(self._mean(pid)[groups].sum()) for pid in users), default=0.0)

    def cost_of(self, library: Library) -> float:
        """Seconds of one hit on the library's dearest functions."""
        return self.cost.of(bool(library.stepped))

    @property
    def most(self) -> tuple[float, int]:
        """Share of a core that probes take of the process that loses the most, and its number; 0, 0: of none."""
        return max(((self.of_process(pid), pid) for pid in self._shares), default=(0.0, 0))

    @property
    def words(self) -> str:
        """Cost, what is taken and what is allowed, in one line."""
        most, pid = self.most
        taken = f"{most:.2%} of a core of process {pid}, the most of all" if most else "nothing of any process"
        return f"{self.cost.words}; probes take {taken}, and may take {self.share:.2%} (agent.probe_share)"

    def _measure(self, clock: float, libraries: list[Library]) -> dict[int, NDArray[np.float64]]:
        """By process the share of a core that each group takes, from the hits since the last look."""
        then, before = self._before
        hits = self._hits()
        self._before = clock, hits
        self._reported = {pid: groups for pid, groups in self._reported.items() if pid in hits}
        dear: dict[int, set[int]] = {}
        for library in libraries:
            for user in tuple(library.users) if library.stepped else ():
                dear.setdefault(user.pid, set()).update(library.stepped)
        shares = {}
        for pid, counted in hits.items():
            costs = np.full(GROUPS, self.cost.emulated)
            costs[list(dear.get(pid, ()))] = self.cost.stepped
            more = np.maximum(counted - before.get(pid, counted), 0)
            shares[pid] = more * costs / max(clock - then, 1e-3)
            for group, share in self._reported.get(pid, {}).items():
                shares[pid][group] = share
        return shares

    def _hits(self) -> dict[int, NDArray[np.int64]]:
        """Hits by process and group, ever; NCCL's queries are counted by communicator."""
        rows, slots = self._processes.rows(), self._slots.rows()
        rows = rows[rows["tgid"] != 0]
        hits = np.zeros((len(rows), GROUPS), np.int64)
        hits[:, : rows["hits"].shape[1]] = rows["hits"]
        slots = slots[np.isin(slots["tgid"], rows["tgid"])]
        order = np.argsort(rows["tgid"])
        np.add.at(
            hits[:, CALLS],
            order[np.searchsorted(rows["tgid"], slots["tgid"], sorter=order)],
            slots["queries"].astype(np.int64),
        )
        return dict(zip(rows["tgid"].tolist(), hits, strict=True))

    def _decide(self, library: Library, group: int, state: _GroupState, clock: float) -> None:
        """Suspend a group that has taken too much for seconds; put it on again after a pause, for a window."""
        if state.suspended != (group in library.suspended):
            state.suspended, state.since, state.fast_since = not state.suspended, clock, None
        if state.suspended:
            if clock - state.since >= state.pause_s:
                library.resume(group)
            return
        pid = next((one.pid for one in tuple(library.users) if self.exceeds(one.pid, group, state.partial)), None)
        if pid is None:
            state.fast_since = None
            state.partial &= clock - state.since < CALM_S
            return
        state.fast_since = clock if state.fast_since is None else state.fast_since
        if clock - state.fast_since >= (SAMPLE_S if state.partial else FAST_S):
            self._space(library, group, state, pid)
            library.pause(group, self.why(pid, group, state.ratio if state.pause_s <= SPARSE_S else 0.0))

    def _space(self, library: Library, group: int, state: _GroupState, pid: int) -> None:
        """Choose the pause so that on average the process loses no more than its share."""
        parts = self._shares[pid]
        room = max(self.share - float(parts.sum() - parts[group]), 0.0)
        wanted = min(room / float(parts[group]), 1.0)
        state.partial = True
        state.pause_s = AGAIN_S
        if wanted > WINDOW_S / (WINDOW_S + AGAIN_S):
            state.pause_s = max(WINDOW_S / wanted - WINDOW_S, SAMPLE_S)
        state.ratio = WINDOW_S / (WINDOW_S + state.pause_s)
        shares = {user.pid: self._shares.get(user.pid) for user in tuple(library.users)}
        state.taken = {pid: float(one[group]) * state.ratio for pid, one in shares.items() if one is not None}

    def _note(self, places: Mapping[tuple[str, int], Library]) -> None:
        """Remember by process which groups have gaps, which of these sample, and what they take on average."""
        partial: dict[Process, set[int]] = {}
        windows: dict[Process, dict[int, Window]] = {}
        means: dict[int, dict[int, float]] = {}
        for (name, group), library in places.items():
            state = self._states[name, group]
            for user in tuple(library.users) if state.partial else ():
                partial.setdefault(user, set()).add(group)
                means.setdefault(user.pid, {})[group] = state.taken.get(user.pid, 0.0)
                if state.pause_s <= SPARSE_S:
                    windows.setdefault(user, {})[group] = Window(not state.suspended, state.ratio)
        self._partial, self._windows, self._means = partial, windows, means

    def _mean(self, pid: int) -> NDArray[np.float64]:
        """[group]: the share of a core that is taken of a process."""
        parts = self._shares.get(pid, np.zeros(GROUPS)).copy()
        for group, share in self._means.get(pid, {}).items():
            parts[group] = share
        return parts

    def why(self, pid: int, group: int, ratio: float = 0.0) -> str:
        """Why a group has to go, or to sample for that share of the time."""
        parts: Any = self._shares.get(pid, np.zeros(GROUPS))
        return (
            f"probes on its {WORDS[group]} are {f'sampled, on {ratio:.0%} of the time' if ratio else 'suspended'}: "
            f"they take {parts[group]:.2%} of a core of process {pid}, all probes {parts.sum():.2%} of the "
            f"{self.share:.2%} allowed"
        )
