"""The training processes: those that called a probed function and have a GPU open, with the GPU of each."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace

from agent.probes.slot_pool import Pool
from agent.process.gpu_use import GpuUse
from agent.process.procfs import Process, Processes, gpu_of, is_index, visible_gpus

_REMEMBERED = 4096


@dataclass(frozen=True, slots=True)
class TrainingProcess:
    """One training process and the index of its GPU on the machine."""

    process: Process
    gpu: str
    visible: tuple[str, ...] = ()
    """What CUDA_VISIBLE_DEVICES lists, in its order; empty: all GPUs of the machine."""

    def gpu_at(self, device: int) -> str:
        """The index, on the machine, of a GPU that this process calls by that number."""
        named = self.visible[device] if device < len(self.visible) else ""
        return str(int(named)) if is_index(named) else str(device)


class TrainingProcesses:
    """Training processes by number, learned at their first call; each entry of the kernel's array belongs to one.

    The GPU is the launcher's until the driver names it (`place`); a process without a launcher gets the
    lowest index that no other has, so that its readings have a place of their own and the number of series stays small.
    """

    def __init__(self, processes: Processes, pool: Pool | None = None, use: GpuUse | None = None) -> None:
        self._processes, self._pool, self._use = processes, pool, use
        self._owners: dict[int, Process] = {}  # by index in the kernel's array of processes
        self._known: dict[int, TrainingProcess] = {}
        self._living: Mapping[int, TrainingProcess] = {}
        self._surveyed: int | None = None
        self.uncounted: Mapping[int, int] = {}
        """By number of each process without probes on its calls, the operations that its memory shows."""
        self._lock = threading.Lock()  # sources read on threads of their own

    def living(self, now: int) -> Mapping[int, TrainingProcess]:
        """The training processes alive at the reading of that time, read once for all sources.

        One that has ended, or runs another program by now, gives its entry in the kernel back.
        """
        with self._lock:
            if now != self._surveyed:
                self._living = self._survey()
                self._surveyed = now
            return self._living

    def alive(self, pid: int) -> bool:
        """Whether any program runs under that number, asked now."""
        return self._processes.find(pid) is not None

    def place(self, gpus: Mapping[int, str]) -> None:
        """The GPU on which the driver sees processes compute: it outweighs the launcher's environment.

        In a container that was given some of the machine's GPUs, a launcher counts those from 0.
        """
        with self._lock:
            for pid, gpu in gpus.items():
                known = self._known.get(pid)
                if known is not None and known.gpu != gpu:
                    self._known[pid] = replace(known, gpu=gpu)

    def last_known(self, pid: int) -> TrainingProcess | None:
        """What was known of a process, be it alive or not."""
        return self._known.get(pid)

    def _survey(self) -> dict[int, TrainingProcess]:
        if self._pool is None:
            return {}
        callers: list[Process] = []
        indices, entries = self._pool.taken()
        for index, pid in zip(indices.tolist(), entries["tgid"].tolist(), strict=True):
            process = self._processes.find(pid)
            if process is not None and self._owners.setdefault(index, process) == process:
                callers.append(process)
            else:
                if self._owners.pop(index, None) is None:
                    self._known.pop(pid, None)  # it ended unread: the known one is earlier
                self._pool.give_back(index, pid.to_bytes(8, "little"))
        counted = set(callers) if self._use is None else self._use.users(callers)
        for process in callers:
            if process not in counted and self._known.get(process.pid, TrainingProcess(process, "")).process != process:
                del self._known[process.pid]  # the number was another's
        return {process.pid: self._learn(process) for process in callers if process in counted}

    def _learn(self, process: Process) -> TrainingProcess:
        known = self._known.get(process.pid)
        if known is not None and known.process == process:
            return known
        environment = self._processes.environment(process.pid)
        gpu = gpu_of(environment)
        if len(self._known) >= _REMEMBERED:
            self._known = {pid: trainer for pid, trainer in self._known.items() if self._lives(trainer)}
        self._known[process.pid] = TrainingProcess(
            process, self._spare() if gpu is None else gpu, visible_gpus(environment)
        )
        return self._known[process.pid]

    def _lives(self, trainer: TrainingProcess) -> bool:
        return self._processes.alive(trainer.process)

    def _spare(self) -> str:
        taken = {trainer.gpu for trainer in self._known.values() if self._lives(trainer)}
        return next(str(index) for index in range(len(taken) + 1) if str(index) not in taken)
