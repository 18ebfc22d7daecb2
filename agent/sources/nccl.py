"""NCCL communicators of each training process: what was asked of them, and how far they are."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from agent.context import Context
from agent.nccl.communicators import Communicator, Communicators
from agent.nccl.inspector import Inspector
from agent.nccl.iteration import IterationDetector
from agent.nccl.operation_count import MEMORY, CountOrigin, CountTracker, continued
from agent.nccl.probe_throttle import Calls, ProbeThrottle
from agent.nccl.row import of_process, of_transfers, operation_of
from agent.probes.slot_pool import Pool
from agent.probes.training_processes import TrainingProcess
from agent.process.procfs import Process
from bpf.loader import Kernel
from store.schema.sample import Sample, Value

_TRIES = 5
LISTEN_EVERY = 2
"""Readings from one look at a process's log of operations to the next, unless it fills quickly."""


@dataclass(slots=True)
class Followed:
    """What the agent remembers of one entry of the kernel's array."""

    process: Process
    gpu: str
    slot: int
    baseline: CountOrigin = field(default_factory=CountOrigin)
    queries: int = 0
    blocked: int = 0
    """For how long it has held up the host, as last told; ns."""
    count: CountTracker = field(default_factory=CountTracker)
    by_memory: bool = False
    """Its calls went uncounted at some time."""


class Nccl:
    """One row a communicator."""

    def __init__(self, context: Context, kernel: Kernel, inspector: Inspector, throttle: ProbeThrottle) -> None:
        maps, shares = kernel.maps, context.shares
        assert shares is not None  # where there is a kernel side there are shares
        self._training = context.training
        self._inspector, self._throttle = inspector, throttle
        self._communicators = Communicators(context.config.name)
        self._ring, self._losses, self._processes = kernel.rings["events"], maps["losses"], maps["processes"]
        self._logs, self._iterations = maps["logs"], dict[Process, IterationDetector]()
        self._slots = maps["slots"]
        self._pool = Pool(self._slots, maps["slot_of"], maps["free_slots"], shares.slots)
        self._shares, self._left_out = shares, context.left_out
        self._turn = 0
        self._followed: dict[int, Followed] = {}  # by index in the kernel's array

    def read(self, now: int) -> list[Sample]:
        """A row for each communicator of a living process, and an event for each process that left some behind."""
        events = self._ring.drain()
        self._shares.drained(events)
        self._communicators.apply(events)
        clock = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        living = self._training.living(now)
        rows = self._processes.rows()
        places = np.flatnonzero(rows["tgid"])
        processes = {int(row["tgid"]): row for row in rows[places]}
        place_of = dict(zip(processes, places.tolist(), strict=True))
        self._listen(places, rows, living, clock)
        samples: list[Sample] = []
        left: dict[int, list[Communicator]] = {}
        indices, entries = self._pool.taken()
        for index, entry in zip(indices.tolist(), entries, strict=True):
            pid, comm = int(entry["tgid"]), int(entry["comm"])
            trainer, followed = living.get(pid), self._followed.get(index)
            if trainer is None and followed is None and self._training.alive(pid):
                continue  # it came after the look at the living
            gone = trainer is None or (followed is not None and followed.process != trainer.process)
            if gone and not entry["ended"]:
                left.setdefault(pid, []).append(self._communicators.known.get((pid, comm), Communicator()))
            if trainer is None or gone or entry["ended"]:
                self._retire(index, entry)
                if (place := place_of.get(pid)) is not None:
                    self._shares.slots_of.add(place)
            else:
                values = self._values(index, entry, trainer, clock)
                iteration = self._iterations.setdefault(trainer.process, IterationDetector())
                values["iteration_seconds"] = iteration.seconds(clock)
                values |= of_process(processes.get(pid))
                samples.append(Sample("nccl", self._by_memory(index, entry, values, clock)))
        for pid, held in left.items():
            samples += self._farewell(pid, held)
        for pid in self._communicators.processes() | self._inspector.processes():
            if pid in left or (pid not in living and not self._training.alive(pid)):
                self._communicators.forget(pid)
                self._inspector.forget(pid)
        self._update_throttle(processes, clock)
        return [*samples, self._loss()]

    def close(self) -> None:
        """Let go of the processes."""
        self._inspector.close()

    def _listen(self, places: Any, rows: Any, living: Mapping[int, TrainingProcess], clock: int) -> None:
        """Take in which operations the processes have asked for."""
        # Across a time in which calls went uncounted there is no rhythm.
        known = {one.process for one in living.values() if not self._throttle.suspended(one.process)}
        self._iterations = {process: iteration for process, iteration in self._iterations.items() if process in known}
        logs = self._logs.rows()
        self._turn += 1
        for place in places.tolist():
            trainer = living.get(int(rows[place]["tgid"]))
            if trainer is None or trainer.process not in known or logs[place]["tgid"] != trainer.process.pid:
                continue
            iteration = self._iterations.setdefault(trainer.process, IterationDetector())
            if iteration.log_nearly_full or (place + self._turn) % LISTEN_EVERY == 0:
                iteration.add_log(int(logs[place]["count"]), logs[place]["entries"], clock)

    def _values(self, index: int, entry: Any, trainer: TrainingProcess, clock: int) -> dict[str, Value]:
        pid, comm, operations = int(entry["tgid"]), int(entry["comm"]), int(entry["operations"])
        followed = self._follow(index, trainer)
        known = self._identify(trainer, comm)
        self._compare(index, entry, known.born)
        since, queries = int(entry["blocked_since"]), int(entry["queries"])
        blocked = int(entry["blocked_ns"]) + (max(clock - since, 0) if since else 0)
        # Where two threads wait on one communicator the kernel's sum may be taken back.
        followed.blocked = max(followed.blocked, blocked)
        asked, followed.queries = queries - followed.queries, queries
        return {
            "gpu": followed.gpu,
            "slot": str(followed.slot),
            "comm": known.identity,
            "rank": known.rank,
            "ranks": known.ranks,
            "pid": pid,
            "operation": operation_of(entry),
            "operations_total": operations + followed.baseline.base if followed.baseline.origin else None,
            "counted_from": followed.baseline.origin,
            "bytes_total": int(entry["bytes"]),
            "unsized_total": int(entry["unsized"]),
            # A framework's watchdog asks after its unfinished work only; without one nothing is known.
            "pending": float(asked > 0) if queries else None,
            "idle_seconds": max(clock - int(entry["last_ns"]), 0) / 1e9 if entry["last_ns"] else None,
            "host_blocked_seconds_total": followed.blocked / 1e9,
        } | of_transfers(self._inspector.shares(pid, comm), known.ranks)

    def _compare(self, index: int, entry: Any, born: bool) -> None:
        """Learn where our count begins, and whether the library's own moves in step: both read with no call between."""
        followed, slots = self._followed[index], self._slots.rows()
        if followed.by_memory or (followed.baseline.origin and followed.count.in_step):
            return
        for _ in range(_TRIES):
            before = int(slots[index]["operations"])
            own = self._inspector.operations(int(entry["tgid"]), int(entry["comm"]))
            if own is None or before == int(slots[index]["operations"]):
                break
        else:
            own = None
        followed.baseline.settle(born, before, own)
        if followed.baseline.origin and own is not None:
            followed.count.compare(before + followed.baseline.base, own)
            if followed.count.in_step and followed.baseline.origin == MEMORY:
                # An operation was under way when the base was learned.
                followed.baseline.base, followed.count.apart = followed.baseline.base + followed.count.apart, 0

    def _by_memory(self, index: int, entry: Any, values: dict[str, Value], clock: int) -> dict[str, Value]:
        """The row, as far as it is known where calls go uncounted; a count that was carried on by memory stays so."""
        followed = self._followed[index]
        suspended = self._throttle.suspended(followed.process)
        if suspended and not followed.by_memory:
            followed.by_memory = True
            if not followed.count.in_step:  # calls went uncounted from its birth on, but the library counted them
                followed.count = CountTracker(in_step=True)
        if not followed.by_memory:
            return values
        own = self._inspector.operations(int(entry["tgid"]), int(entry["comm"]))
        told = continued(values, own, followed.count, clock)
        return told if suspended else values | {name: told[name] for name in ("operations_total", "counted_from")}

    def _update_throttle(self, processes: Mapping[int, Any], clock: int) -> None:
        """Tell of each process how often it calls, and whether probes could let go of it."""
        made: dict[int, list[tuple[int, Followed]]] = {pid: [] for pid in processes}
        counts = {pid: int(row["group_starts"]) + int(row["group_ends"]) for pid, row in processes.items()}
        slots = self._slots.rows()
        for index, followed in self._followed.items():
            if followed.process.pid in made:
                made[followed.process.pid].append((int(slots[index]["comm"]), followed))
                counts[followed.process.pid] += int(slots[index]["operations"]) + int(slots[index]["queries"])
        calls = {}
        for pid, some in made.items():
            readable = bool(some) and all(one.count.in_step and self._inspector.knows(pid, comm) for comm, one in some)
            unseen = self._communicators.announced(pid) - {comm for comm, _ in some}
            calls[pid] = Calls(counts[pid], readable, len(unseen))
        self._throttle.update(clock / 1e9, calls)
        suspended = [followed for followed in self._followed.values() if self._throttle.suspended(followed.process)]
        told: dict[int, int] = {}
        for followed in suspended:
            told[followed.process.pid] = told.get(followed.process.pid, 0) + max(followed.count.total, 0)
        self._training.uncounted = told

    def _follow(self, index: int, trainer: TrainingProcess) -> Followed:
        """A communicator gets the lowest number that no other of its GPU has: the number of series stays bounded."""
        followed = self._followed.get(index)
        if followed is None or followed.gpu != trainer.gpu:  # the driver may tell its GPU after the first call
            taken = {one.slot for one in self._followed.values() if one.gpu == trainer.gpu}
            slot = next(slot for slot in range(len(taken) + 1) if slot not in taken)
            followed = followed or Followed(trainer.process, trainer.gpu, slot)
            followed.gpu, followed.slot = trainer.gpu, slot
            self._followed[index] = followed
        return followed

    def _identify(self, trainer: TrainingProcess, comm: int) -> Communicator:
        pid = trainer.process.pid
        known = self._communicators.look_up(pid, comm, self._inspector.pointer)
        told = self._inspector.identify(trainer.process, comm)
        if told is None:
            return known
        return self._communicators.learn(pid, comm, f"{told.comm_hash:016x}", told.rank, told.ranks)

    def _retire(self, index: int, entry: Any) -> None:
        pid, comm = int(entry["tgid"]), int(entry["comm"])
        key = np.array([comm, pid], np.uint64).tobytes()
        self._pool.give_back(index, None if entry["ended"] else key)
        self._followed.pop(index, None)
        self._inspector.forget(pid, comm)
        if entry["ended"] and self._communicators.known.get((pid, comm), Communicator()).ended:
            self._communicators.forget(pid, comm)

    def _farewell(self, pid: int, held: list[Communicator]) -> list[Sample]:
        """The event of a process that ended without leaving its communicators; none where it said farewell."""
        staying = [communicator for communicator in held if not communicator.ended]
        trainer = self._training.last_known(pid)
        if not staying or trainer is None:
            return []
        world = max(staying, key=lambda communicator: communicator.ranks or 0)
        who = f"rank {world.rank} of {world.ranks}" if world.rank is not None else f"process {pid}"
        message = f"{who} (pid {pid}) ended without leaving {len(staying)} communicator(s)"
        values = {"source": "nccl", "code": "rank_exit", "device": f"gpu:{trainer.gpu}", "severity": "crit"}
        return [Sample("event", values | {"message": message})]

    def _loss(self) -> Sample:
        self._shares.report(self._left_out)
        counts = self._losses.rows().copy()
        lost, foreign = int(counts[1:].sum()), int(counts[0])
        return Sample("source", {"source": "kernel", "lost_total": lost, "foreign_total": foreign})


def open_source(context: Context) -> Nccl:
    """The source, ready to read. Raises SourceUnavailableError where probes cannot be had."""
    kernel, attachments = context.probes()
    config = context.config
    throttle = ProbeThrottle(attachments, config.nccl_probes, config.nccl_calls_per_second)
    return Nccl(context, kernel, Inspector(attachments, config.progress_hertz), throttle)
