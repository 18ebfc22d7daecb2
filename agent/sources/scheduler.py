"""What training processes wait for (CPU, disks), their TCP retransmits, and kills for lack of memory."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from agent.context import Context, SourceUnavailableError
from agent.probes.governor import ProbeGovernor
from agent.probes.groups import SWITCHES
from agent.probes.switch_limit import SwitchLimit
from agent.probes.training_processes import TrainingProcesses
from agent.probes.watched_processes import WatchedProcesses
from agent.process.tcp_sockets import Sockets
from agent.system.on_change import OnChange
from bpf.loader import Kernel
from bpf.tracepoint import PREFIX, attach
from store.schema.sample import Sample, Value

_U64 = (1 << 64) - 1
TRACEPOINTS = {"sched_switch": "sched", "tcp_retransmit_skb": "tcp", "mark_victim": "oom"}
"""What is counted at: each tracepoint's name and the part of the kernel that it belongs to."""
# Columns that need a field of the kernel's structures beside the tracepoint itself.
_FIELDS = {
    "cpu_wait_seconds_total": "OFFSET_sched_info__run_delay",
    "disk_wait_seconds_total": "BIT_task_struct__in_iowait",
}


def attach_all(kernel: Kernel) -> tuple[dict[str, int], dict[str, str]]:
    """Descriptors of the tracepoints that carry programs now, and why the others do not."""
    links, blocked = {}, {}
    for name in TRACEPOINTS:
        program = kernel.programs.get(PREFIX + name)
        if program is None:
            blocked[name] = kernel.refused.get(PREFIX + name) or kernel.unknown or _missing(kernel, name)
            continue
        try:
            links[name] = attach(program)
        except OSError as error:
            blocked[name] = str(error.strerror)
    return links, blocked


def _missing(kernel: Kernel, name: str) -> str:
    known = f"TYPE_{name}" in kernel.layout
    return "this kernel keeps in other fields what is counted" if known else "this kernel has no such tracepoint"


def disk_ns(waits: Sequence[int], clock: int, longest: int) -> int:
    """Time in disk waits: of those that are over, and of those under way by how many they are and when they began.

    The kernel adds the beginnings up. While it changes the two numbers they do not fit together: a wait longer than
    has been watched for is none.
    """
    over, count, began = waits
    under_way = count * clock - began & _U64
    return over + (under_way if under_way <= count * longest else 0)


class Scheduler:
    """One row a GPU: its processes, and those that they started, are added up in the kernel."""

    def __init__(self, kernel: Kernel, training: TrainingProcesses, governor: ProbeGovernor, proc: Path) -> None:
        self._links, self._blocked = attach_all(kernel)
        if not self._links:
            raise SourceUnavailableError("; ".join(f"{name}: {why}" for name, why in self._blocked.items()))
        self._began = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        self._waits, self._training, self._layout = kernel.maps["waits"], training, kernel.layout
        self._rings = kernel.rings
        self._watched = WatchedProcesses(kernel.maps["watched"], kernel.maps["pid_filter"], self._waits.capacity, proc)
        self._sockets = Sockets(proc)
        self._governor, self._limit = governor, SwitchLimit(governor)
        self._disk: dict[str, int] = {}
        self._states = OnChange[str, dict[str, Value]]()

    def read(self, now: int) -> list[Sample]:
        """A row for each GPU with living processes; an event for each that ran out of memory."""
        samples = self._victims()  # while their GPUs are known
        living = self._training.living(now)
        entries = self._waits.rows()
        self._watched.update(now, self._limit.update(time.monotonic(), entries, living))
        if "tcp_retransmit_skb" in self._links:  # else there may be no ring
            self._sockets.update(now, self._rings["retransmits"].drain(), self._watched.gpu_of)
        samples += [Sample("process", self._row(gpu, entries)) for gpu in {one.gpu for one in living.values()}]
        states = {name: self.state(name) for name in TRACEPOINTS}
        due = self._states.due(now, states)
        return samples + [Sample("probe", states[name] | self._taken(name)) for name in due]

    def state(self, name: str) -> dict[str, Value]:
        """How one tracepoint fares, as a row of the table of probes."""
        blocked = self._blocked.get(name)
        state = "blocked" if blocked else "on"
        lacking = [column for column, word in _FIELDS.items() if word not in self._layout]
        reasons, path = [], f"{TRACEPOINTS[name]}:{name}"
        if name == "sched_switch":
            reasons = [f"this kernel does not keep {', '.join(lacking)}"] if lacking else []
            reasons += self._limit.reasons.values()
        values = {"state": state, "reason": blocked or "; ".join(reasons) or None, "symbols": int(not blocked)}
        return {"library": f"tracepoint {name}", **values, "path": path}

    def _taken(self, name: str) -> dict[str, Value]:
        """What counting at a tracepoint takes, where that can be much."""
        if name != "sched_switch" or name not in self._links:
            return {}
        resting = int(bool(self._limit.reasons))
        share = self._governor.of_group(SWITCHES)
        return {"hit_seconds": self._limit.seconds, "core_ratio": share, "suspended": resting}

    def close(self) -> None:
        """Take the programs off."""
        for link in self._links.values():
            os.close(link)
        self._links = {}

    def _row(self, gpu: str, entries: NDArray[np.void]) -> dict[str, Value]:
        row: dict[str, Value] = {"gpu": gpu}
        if "sched_switch" in self._links and int(gpu) < len(entries) and gpu not in self._limit.reasons:
            cpu_ns, *waits = entries[int(gpu)][["cpu_ns", "disk_ns", "blocked", "since"]].item()
            clock = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
            self._disk[gpu] = max(self._disk.get(gpu, 0), disk_ns(waits, clock, clock - self._began))
            sums = {"cpu_wait_seconds_total": cpu_ns, "disk_wait_seconds_total": self._disk[gpu]}
            row |= {column: ns / 1e9 for column, ns in sums.items() if _FIELDS[column] in self._layout}
        if "tcp_retransmit_skb" in self._links:
            row["tcp_retransmit_segments_total"] = self._sockets.segments[gpu]
        return row

    def _victims(self) -> list[Sample]:
        if "mark_victim" not in self._links:
            return []
        return [self._event(pid) for pid in self._rings["victims"].drain()["tgid"].tolist()]

    def _event(self, pid: int) -> Sample:
        known = self._training.last_known(pid)
        gpu = self._watched.gpu_of.get(pid) or (known.gpu if known else None)
        what = "process" if known else "a process that a training process started,"
        values: dict[str, Value] = {"source": "scheduler", "code": "oom_kill", "severity": "crit"}
        values["message"] = f"{what} {pid} was killed: out of memory"
        return Sample("event", values | {"device": f"gpu:{gpu}" if gpu else None})


def open_source(context: Context) -> Scheduler:
    """The source, ready to read. Raises SourceUnavailableError where no tracepoint can be had."""
    kernel, _ = context.probes()
    assert context.governor is not None  # where there are probes there is one
    return Scheduler(kernel, context.training, context.governor, context.proc)
