"""How each training process came up: the phases that Bootseer (arXiv 2507.12619) measures, seen from outside.

All times are from the process's start (its clock tick). How fine each is:
- libraries: the look that first saw them mapped; late by `scan_seconds` at most, and by eight times that for a
  process that had done nothing for many looks.
- communicator and first operation: to the microsecond, by the probes. A communicator that was made before the probes
  came on, seconds after the first process of a machine maps a new library, is not seen.
- checkpoint: what the process read between its libraries and its first operation, in readings with a megabyte a
  second and more.
- before it: from its container's cgroup, as `agent/process/container.py` says.
Of a process that is older than the agent only the start is known; what is not known is null.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from agent.context import Context
from agent.probes.attachments import Attachments
from agent.probes.training_processes import TrainingProcess
from agent.process.container import before_start
from agent.process.jobs.cgroup import parse_cgroup
from agent.process.jobs.job import VARIABLES, job_of
from agent.process.jobs.kubelet import Kubelet
from agent.process.procfs import Process
from agent.system.on_change import OnChange
from bpf.maps import Map
from store.schema.sample import Sample, Value

_HEAVY = 1e6
"""Bytes a second above which a process reads. It is low: a slow file system must count as reading too."""
_AT_ONCE = 16
"""Processes with reads that are sampled in one round; a machine with more of them samples them in turns."""
_REMEMBERED = 1024
_SETTLED_NS = 1_000_000
"""Two clocks that are read one after the other differ by less than this where they have not moved."""
_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_MARKS = {
    "communicator_begun_seconds": "init_ns",
    "communicator_made_seconds": "born_ns",
    "first_operation_seconds": "operation_ns",
}
"""Column: the field of the kernel's entry (bpf/programs/common.bpf.h, struct process)."""


@dataclass(slots=True)
class Beginning:
    """What is known of the start of one process. Times are ns since boot (CLOCK_BOOTTIME)."""

    cuda: int | None = None
    nccl: int | None = None
    sampled_at: int = 0
    """When its reads were last sampled; 0: never."""
    counts: tuple[int, int] = (0, 0)
    read_ns: int = 0
    read_bytes: int = 0
    reading: bool = False
    before: Mapping[str, float | None] | None = None
    """Seconds of the phases before its start; None: not looked up yet."""

    def grow(self, at: int, counts: tuple[int, int]) -> None:
        """Add what it has read so far, by system calls and from storage: the larger growth of both is the reading."""
        elapsed, before = at - self.sampled_at, self.sampled_at
        grown = max(new - old for new, old in zip(counts, self.counts, strict=True))
        self.sampled_at, self.counts = at, counts
        self.reading = bool(before) and elapsed > 0 and grown / elapsed * 1e9 >= _HEAVY
        if self.reading:
            self.read_ns += elapsed
            self.read_bytes += grown


def parse_io(text: bytes) -> tuple[int, int]:
    """Bytes read by system calls, and from storage, from /proc/PID/io. Raises ValueError on another form."""
    fields = dict(line.split(b": ", 1) for line in text.splitlines() if b": " in line)
    try:
        return int(fields[b"rchar"]), int(fields[b"read_bytes"])
    except KeyError as error:
        raise ValueError(f"/proc/PID/io has no {error}") from None


class Startup:
    """A row a GPU, on change and once a minute; and one for the history, once a start is over."""

    def __init__(self, context: Context, attachments: Attachments, processes: Map) -> None:
        self._training, self._attachments, self._processes = context.training, attachments, processes
        self._proc, self._root = context.proc, Path(context.config.root)
        self._of_jobs, self._kubelet = context.processes, Kubelet(self._root)
        self._opened = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        self._known: dict[Process, Beginning] = {}
        self._asleep = 0
        self._turn = 0
        self._scans = 0
        self._states = OnChange[str, tuple[Value, ...]]()
        self._settled: dict[str, Process] = {}  # by GPU, the process with a start that is over

    def read(self, now: int) -> list[Sample]:
        """Rows of the GPUs where the process has come further."""
        boot = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        asleep = boot - time.clock_gettime_ns(time.CLOCK_MONOTONIC)  # the kernel's probes do not count suspension
        if abs(asleep - self._asleep) > _SETTLED_NS:
            self._asleep = asleep
        living = self._training.living(now)
        taken = self._processes.rows()
        entries = {int(entry["tgid"]): entry for entry in taken[np.flatnonzero(taken["tgid"])]}
        if self._attachments.scans != self._scans:
            self._scans = self._attachments.scans
            self._notice(boot, living)
        self._follow(boot, {pid for pid, entry in entries.items() if entry["operation_ns"]})
        youngest: dict[str, tuple[TrainingProcess, Any]] = {}
        for trainer in sorted(living.values(), key=lambda trainer: trainer.process.start):
            entry = entries.get(trainer.process.pid)
            if entry is not None:
                youngest[trainer.gpu] = trainer, entry
        return self._news(now, boot, youngest)

    def close(self) -> None:
        """The maps are the loader's."""

    def _notice(self, boot: int, living: Mapping[int, TrainingProcess]) -> None:
        """When each library is first seen in each process."""
        seen = self._attachments.mapped(("cudart", "nccl"))
        for word, processes in seen.items():
            for process in processes:
                beginning = self._known.setdefault(process, Beginning())
                if word == "nccl":
                    beginning.nccl = beginning.nccl or boot
                else:
                    beginning.cuda = beginning.cuda or boot
        if len(self._known) > sum(map(len, seen.values())) + len(living) or len(self._known) > _REMEMBERED:
            there = set().union(*seen.values(), (trainer.process for trainer in living.values()))
            self._known = {process: known for process, known in self._known.items() if process in there}

    def _follow(self, boot: int, running: set[int]) -> None:
        """Sample the reads of processes that have loaded their libraries and asked for no operation yet."""
        starting = [
            (process, known)
            for process, known in self._known.items()
            if known.nccl and process.pid not in running and self._witnessed(process)
        ]
        for place in range(min(len(starting), _AT_ONCE)):
            process, known = starting[(self._turn + place) % len(starting)]
            try:
                known.grow(boot, parse_io((self._proc / str(process.pid) / "io").read_bytes()))
            except (OSError, ValueError):
                known.sampled_at = 0  # it has ended, or cannot be read: the next sample begins again
        self._turn += _AT_ONCE

    def _witnessed(self, process: Process) -> bool:
        return process.start * _TICK_NS >= self._opened - _TICK_NS

    def _row(self, offset: int, trainer: TrainingProcess, entry: Any) -> dict[str, Value]:
        process = trainer.process
        start = process.start * _TICK_NS
        started = (start + offset) // 10**6 / 1e3
        row: dict[str, Value] = {"gpu": trainer.gpu, "pid": process.pid, "start_time_seconds": started}
        if not self._witnessed(process):
            return row
        known = self._known.get(process, Beginning())
        if known.before is None:
            known.before = before_start(self._proc, self._root, process.pid, offset / 1e9)
        row.update(known.before)
        begun, worked = int(entry["init_ns"]), int(entry["operation_ns"])
        calls = [at + self._asleep for at in (begun, worked) if at]
        for column, seen in (("cuda_loaded_seconds", known.cuda), ("nccl_loaded_seconds", known.nccl)):
            # Whoever calls NCCL has loaded both by then, when a look came to see it may be later.
            row[column] = max(min([seen, *calls]) - start, 0) / 1e9 if seen else None
        if known.sampled_at:
            row["checkpoint_read_seconds"], row["checkpoint_read_bytes"] = known.read_ns / 1e9, known.read_bytes
        # Work before any communicator was seen being made: that one was made before the probes came on.
        if begun and not 0 < worked < begun:
            for column, field in _MARKS.items():
                at = int(entry[field])
                row[column] = max(at + self._asleep - start, 0) / 1e9 if at else None
        return row

    def _news(self, now: int, boot: int, youngest: dict[str, tuple[TrainingProcess, Any]]) -> list[Sample]:
        repeat = self._states.repeats(now)
        rows, states = dict[str, dict[str, Value]](), dict[str, tuple[Value, ...]]()
        done: list[Sample] = []
        for gpu, (trainer, entry) in youngest.items():
            if self._settled.get(gpu) == trainer.process and not repeat:
                continue
            row, known = self._row(now - boot, trainer, entry), self._known.get(trainer.process)
            phase = _phase(known, entry)
            # The start in Unix time moves with the clock's adjustment: that alone is no change.
            states[gpu] = (phase, *(value for column, value in row.items() if column != "start_time_seconds"))
            rows[gpu] = row
            if phase == "running" and (known is not None or not self._witnessed(trainer.process)):
                if self._settled.get(gpu) != trainer.process and self._witnessed(trainer.process):
                    done.append(Sample("start", {**row, "job_name": self._job_name(trainer.process.pid)}))
                self._settled[gpu] = trainer.process
        samples = done
        for gpu in self._states.due(now, states):
            samples += [Sample("startup", rows[gpu]), Sample("cuda", {"gpu": gpu, "startup_phase": states[gpu][0]})]
        return samples

    def _job_name(self, pid: int) -> str | None:
        """The name of its job, where a scheduler gives one."""
        variables = self._of_jobs.variables(pid, VARIABLES)
        return job_of(parse_cgroup(self._of_jobs.cgroup(pid)), variables, "", self._kubelet).get("job_name")


def _phase(known: Beginning | None, entry: Any) -> str:
    """How far a process has come: loaded, reading, connecting or running."""
    if entry["operation_ns"]:
        return "running"
    if entry["init_ns"]:
        return "connecting"
    return "reading" if known is not None and known.reading else "loaded"


def open_source(context: Context) -> Startup:
    """The source, ready to read. Raises SourceUnavailableError where probes cannot be had."""
    kernel, attachments = context.probes()
    return Startup(context, attachments, kernel.maps["processes"])
