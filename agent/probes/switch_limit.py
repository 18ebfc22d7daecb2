"""What counting switches of threads takes of training processes; where it is too much, those of a GPU rest a minute.

The kernel counts the switches by GPU and times some of them (bpf/programs/scheduler.bpf.c).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from agent.probes.governor import ProbeGovernor
from agent.probes.groups import SWITCHES
from agent.probes.training_processes import TrainingProcess

CHECK_S, REST_S = 5.0, 60.0
"""How often what they take is looked at, and for how long switches go uncounted where it is too much."""
_AROUND_S: Final = 1.5e-7
"""What the program does before it can time itself: how it is entered, and how it finds its process (docs/kernel.md)."""
_ASSUMED_S: Final = 3e-7
"""The rest, until a switch was timed."""


@dataclass(frozen=True, slots=True)
class _Counts:
    """What the kernel has counted of one GPU's processes at a time (monotonic seconds)."""

    clock: float
    switches: int
    timed: int
    timed_ns: int


class SwitchLimit:
    """Knows which GPUs have processes that lose too much to the counting of their switches."""

    def __init__(self, governor: ProbeGovernor) -> None:
        self._governor = governor
        self._before: dict[str, _Counts] = {}
        self._until: dict[str, float] = {}
        self.reasons: dict[str, str] = {}
        """Why switches of a GPU's processes go uncounted now."""
        self.seconds = _AROUND_S + _ASSUMED_S
        """What counting one switch takes."""

    def update(
        self, clock: float, entries: NDArray[np.void], living: Mapping[int, TrainingProcess]
    ) -> dict[int, TrainingProcess]:
        """Those of the training processes with switches to be counted; `entries` [GPU] are the kernel's counts."""
        pids: dict[str, list[int]] = {}
        for pid, trainer in living.items():
            pids.setdefault(trainer.gpu, []).append(pid)
        self._until = {gpu: until for gpu, until in self._until.items() if gpu in pids and clock < until}
        self.reasons = {gpu: self.reasons[gpu] for gpu in self._until}
        self._before = {gpu: counts for gpu, counts in self._before.items() if gpu in pids}
        for gpu, mine in pids.items():
            if gpu not in self._until and int(gpu) < len(entries):
                self._look(gpu, mine, entries[int(gpu)], clock)
        return {pid: trainer for pid, trainer in living.items() if trainer.gpu not in self._until}

    def _look(self, gpu: str, pids: list[int], entry: np.void, clock: float) -> None:
        """Report what the switches since the last look took; let the GPU rest where the governor says so."""
        counts = _Counts(clock, int(entry["switches"]), int(entry["timed"]), int(entry["timed_ns"]))
        before = self._before.setdefault(gpu, counts)
        if clock - before.clock < CHECK_S:
            return
        self._before[gpu] = counts
        if timed := counts.timed - before.timed:
            self.seconds = _AROUND_S + (counts.timed_ns - before.timed_ns) / timed / 1e9
        share = (counts.switches - before.switches) / (clock - before.clock) * self.seconds / len(pids)
        for pid in pids:
            self._governor.report(pid, SWITCHES, share)
        if over := next((pid for pid in pids if self._governor.exceeds(pid, SWITCHES)), None):
            self.reasons[gpu] = f"GPU {gpu}: {self._governor.why(over, SWITCHES)}: uncounted for {REST_S:.0f} s"
            self._until[gpu] = clock + REST_S
            del self._before[gpu]
            for pid in pids:
                self._governor.report(pid, SWITCHES, 0.0)
