"""The processes with waits that are counted: training processes and their children, such as data loaders."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from agent.probes.training_processes import TrainingProcess
from bpf.maps import Map

_CHILDREN_NS = 5_000_000_000
_CHILDREN = 256
_BYTES = 1 << 16


def parse_children(text: bytes) -> list[int]:
    """The process numbers in /proc/PID/task/TID/children."""
    return [int(word) for word in text.split()[:_CHILDREN] if word.isdigit() and len(word) < 10]


def children(proc: Path, pid: int) -> list[int]:
    """The processes that the first thread of a process started; none where the kernel does not list them."""
    try:
        with open(proc / str(pid) / "task" / str(pid) / "children", "rb", buffering=0) as file:
            return parse_children(file.read(_BYTES) or b"")
    except OSError:  # it has ended, or the kernel was built without CONFIG_PROC_CHILDREN
        return []


def pid_filter_of(pids: list[int], words: int) -> NDArray[np.uint64]:
    """One bit for each remainder of a process number."""
    pid_filter = np.zeros(words, np.uint64)
    rest = np.array(pids, np.int64) % (64 * words)
    np.bitwise_or.at(pid_filter, rest // 64, np.uint64(1) << (rest % 64).astype(np.uint64))
    return pid_filter


class WatchedProcesses:
    """Writes the kernel's map of watched processes: by process, the entry of its GPU."""

    def __init__(self, watched: Map, pid_filter: Map, places: int, proc: Path) -> None:
        self._watched, self._pid_filter, self._proc = watched, pid_filter, proc
        self._places = places
        self._bits = np.zeros(pid_filter.capacity, np.uint64)
        self._helpers: dict[int, str] = {}
        self._scanned_at = 0
        self.gpu_of: dict[int, str] = {}
        """The GPU of each process that is watched."""

    def update(self, now: int, living: Mapping[int, TrainingProcess]) -> None:
        """Watch these training processes and their children, and no others."""
        if not 0 <= now - self._scanned_at < _CHILDREN_NS:  # a clock that was set back is no reason to wait
            self._scanned_at = now
            self._helpers = {
                child: trainer.gpu for pid, trainer in living.items() for child in children(self._proc, pid)
            }
        gpu_of_watched = self._helpers | {pid: trainer.gpu for pid, trainer in living.items()}
        wanted = {pid: gpu for pid, gpu in gpu_of_watched.items() if int(gpu) < self._places}
        if wanted != self.gpu_of:
            self._write_maps(dict(islice(wanted.items(), self._watched.capacity)))

    def _write_maps(self, wanted: dict[int, str]) -> None:
        for pid in self.gpu_of.keys() - wanted.keys():
            self._watched.delete(pid.to_bytes(8, "little"))
        for pid, gpu in wanted.items():
            if self.gpu_of.get(pid) != gpu:
                self._watched.update(pid.to_bytes(8, "little"), int(gpu).to_bytes(4, "little"))
        bits = pid_filter_of(list(wanted), len(self._bits))
        for word in np.flatnonzero(bits != self._bits).tolist():
            self._pid_filter.update(word.to_bytes(4, "little"), bits[word].tobytes())
        self._bits, self.gpu_of = bits, wanted
