"""NCCL communicators of each training process: the operations that were asked of them, and their progress."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from agent.context import Context
from agent.nccl.communicator_table import CommunicatorTable, TrackedCommunicator
from agent.nccl.communicators import Communicator, Communicators
from agent.nccl.inspector import Inspector
from agent.nccl.operation_logs import OperationLogs
from agent.nccl.probe_throttle import ProbeThrottle, above
from agent.nccl.row import STILL_S, of_process, of_transfers, operation_of, pending_of
from agent.probes.groups import CALLS, SYNCHRONIZE
from agent.probes.slot_pool import Pool
from agent.probes.training_processes import TrainingProcess
from agent.process.procfs import Process
from bpf.loader import Kernel
from store.schema.sample import Sample, Value


class Nccl:
    """One row a communicator."""

    def __init__(self, context: Context, kernel: Kernel, inspector: Inspector, throttle: ProbeThrottle) -> None:
        maps, shares = kernel.maps, context.shares
        assert shares is not None  # where there is a kernel side there are shares, a governor and probes
        assert context.governor is not None
        assert context.attachments is not None
        self._training = context.training
        self._inspector, self._throttle = inspector, throttle
        self._communicators = Communicators(context.config.name)
        self._ring, self._losses, self._processes = kernel.rings["events"], maps["losses"], maps["processes"]
        self._logs = OperationLogs(maps["logs"])
        self._table = CommunicatorTable(maps["slots"], inspector)
        self._pool = Pool(maps["slots"], maps["slot_of"], maps["free_slots"], shares.slots)
        self._shares, self._left_out, self._governor = shares, context.left_out, context.governor
        self._attachments = context.attachments
        self._waiting: set[Process] = set()  # those with probes on synchronize calls

    def read(self, now: int) -> list[Sample]:
        """A row for each communicator of a living process, and an event for each process that left some behind."""
        events = self._ring.drain()
        self._shares.drained(events)
        self._communicators.apply(events)
        clock = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        living = self._training.living(now)
        self._waiting = self._attachments.carrying(SYNCHRONIZE)
        rows = self._processes.rows()
        entries = [(index, rows[index]) for index in np.flatnonzero(rows["tgid"]).tolist()]
        processes = {int(row["tgid"]): row for _, row in entries}
        suspended = self._throttle.suspended
        counted = {pid: trainer for pid, trainer in living.items() if not suspended(trainer.process)}
        self._logs.update(entries, counted, clock)
        left = self._retire({int(row["tgid"]): index for index, row in entries}, living)
        samples = self._rows(processes, living, clock)
        for pid, communicators in left.items():
            samples += self._exit_events(pid, communicators)
        self._drop_ended(living, left)
        self._throttle.update(clock / 1e9, self._table.calls(processes, self._communicators.announced))
        self._training.uncounted = self._table.uncounted(suspended)
        return [*samples, self._loss()]

    def close(self) -> None:
        """Release the processes."""
        self._inspector.close()

    def _retire(
        self, index_of: Mapping[int, int], living: Mapping[int, TrainingProcess]
    ) -> dict[int, list[Communicator]]:
        """Give back the entries that have ended; by process the communicators that it left behind."""
        left: dict[int, list[Communicator]] = {}
        indices, entries = self._pool.taken()
        for index, entry in zip(indices.tolist(), entries, strict=True):
            pid, comm = int(entry["tgid"]), int(entry["comm"])
            trainer, tracked = living.get(pid), self._table.get(index)
            if trainer is None and tracked is None and self._training.alive(pid):
                continue  # it came after the living were listed
            gone = trainer is None or (tracked is not None and tracked.process != trainer.process)
            if gone and not entry["ended"]:
                left.setdefault(pid, []).append(self._communicators.known.get((pid, comm), Communicator()))
            if gone or entry["ended"]:
                self._give_back(index, entry)
                if pid in index_of:
                    self._shares.slots_of.add(index_of[pid])
        return left

    def _rows(self, processes: Mapping[int, Any], living: Mapping[int, TrainingProcess], clock: int) -> list[Sample]:
        """A row for each communicator of a living process."""
        samples = []
        indices, entries = self._pool.taken()
        gpus = self._gpus(entries, living)
        for index, entry in zip(indices.tolist(), entries, strict=True):
            trainer, tracked = living.get(int(entry["tgid"])), self._table.get(index)
            if trainer is None or (tracked is not None and tracked.process != trainer.process) or entry["ended"]:
                continue  # it came or ended since entries were retired: the next reading will see it
            if self._communicators.is_revoked(trainer.process.pid, int(entry["comm"])):
                continue
            gpu = gpus.get((trainer.process.pid, int(entry["comm"])), trainer.gpu)
            values = self._values(index, entry, trainer, gpu, clock) | of_process(processes.get(trainer.process.pid))
            suspended = self._throttle.suspended(trainer.process)
            samples.append(Sample("nccl", self._table.continue_row(index, entry, values, suspended, clock)))
        return samples

    def _values(self, index: int, entry: Any, trainer: TrainingProcess, gpu: str, clock: int) -> dict[str, Value]:
        pid, comm = int(entry["tgid"]), int(entry["comm"])
        known = self._identify(trainer, comm)
        tracked = self._table.track(index, trainer, gpu)
        self._table.compare_counts(index, entry, known.born)
        asked = tracked.note_queries(int(entry["queries"]), int(entry["operations"]))
        shares = self._inspector.shares(pid, comm)
        idle_seconds = max(clock - int(entry["last_ns"]), 0) / 1e9 if entry["last_ns"] else None
        replayed = tracked.note_replays(idle_seconds, shares)
        waits_seen = trainer.process in self._waiting and SYNCHRONIZE not in self._governor.partial(trainer.process)
        return {
            "gpu": tracked.gpu,
            "slot": str(tracked.slot),
            "comm": known.identity,
            "rank": known.rank,
            "ranks": known.ranks,
            "pid": pid,
            "operation": operation_of(entry),
            "operations_total": _operations_total(tracked, entry),
            "counted_from": tracked.origin.origin,
            "bytes_total": int(entry["bytes"]),
            "unsized_total": int(entry["unsized"]),
            "pending": pending_of(asked, tracked.watched, shares),
            "replayed": replayed,
            "idle_seconds": idle_seconds,
            "host_blocked_seconds_total": tracked.host_blocked_ns(entry, clock) / 1e9 if waits_seen else None,
            "departs": self._departs(trainer, idle_seconds),
            "iteration_seconds": self._logs.iteration_seconds(trainer.process, clock),
        } | of_transfers(shares, known.ranks)

    def _departs(self, trainer: TrainingProcess, idle_seconds: float | None) -> float | None:
        """Whether a process that calls no more has just called what it never did at that place."""
        if idle_seconds is None or idle_seconds < STILL_S:
            return None
        found = self._logs.departs(trainer.process)
        return None if found is None else float(found)

    def _gpus(self, entries: Any, living: Mapping[int, TrainingProcess]) -> dict[tuple[int, int], str]:
        """The GPU of each communicator, by process and address, of processes with communicators on several."""
        devices: dict[int, dict[int, int]] = {}
        for pid, comm in zip(entries["tgid"].tolist(), entries["comm"].tolist(), strict=True):
            identity = self._inspector.identify(living[pid].process, comm) if pid in living else None
            if identity is not None:
                devices.setdefault(pid, {})[comm] = identity.device
        several = {pid: known for pid, known in devices.items() if len(set(known.values())) > 1}
        return {
            (pid, comm): living[pid].gpu_at(device) for pid, known in several.items() for comm, device in known.items()
        }

    def _identify(self, trainer: TrainingProcess, comm: int) -> Communicator:
        pid = trainer.process.pid
        known = self._communicators.look_up(pid, comm, self._inspector.pointer)
        identity = self._inspector.identify(trainer.process, comm)
        if identity is None:
            return known
        return self._communicators.learn(pid, comm, f"{identity.comm_hash:016x}", identity.rank, identity.ranks)

    def _give_back(self, index: int, entry: Any) -> None:
        """Free an entry of the kernel's array, and forget its communicator."""
        pid, comm = int(entry["tgid"]), int(entry["comm"])
        key = np.array([comm, pid], np.uint64).tobytes()
        self._pool.give_back(index, None if entry["ended"] else key)
        self._table.drop(index)
        self._inspector.release(pid, comm)
        if entry["ended"] and self._communicators.known.get((pid, comm), Communicator()).ended:
            self._communicators.drop(pid, comm)

    def _drop_ended(self, living: Mapping[int, TrainingProcess], left: Mapping[int, list[Communicator]]) -> None:
        """Forget the processes that have ended."""
        for pid in self._communicators.processes() | self._inspector.processes():
            if pid in left or (pid not in living and not self._training.alive(pid)):
                self._communicators.drop(pid)
                self._inspector.release(pid)

    def _exit_events(self, pid: int, communicators: list[Communicator]) -> list[Sample]:
        """The event of a process that ended without ending its communicators; none where it ended them all."""
        abandoned = [communicator for communicator in communicators if not communicator.ended]
        trainer = self._training.last_known(pid)
        if not abandoned or trainer is None:
            return []
        world = max(abandoned, key=lambda communicator: communicator.ranks or 0)
        name = f"rank {world.rank} of {world.ranks}" if world.rank is not None else f"process {pid}"
        message = f"{name} (pid {pid}) ended without leaving {len(abandoned)} communicator(s)"
        values = {"source": "nccl", "code": "rank_exit", "device": f"gpu:{trainer.gpu}", "severity": "crit"}
        return [Sample("event", values | {"message": message})]

    def _loss(self) -> Sample:
        self._shares.report(self._left_out)
        counts = self._losses.rows().copy()
        lost, foreign = int(counts[1:].sum()), int(counts[0])
        return Sample("source", {"source": "kernel", "lost_total": lost, "foreign_total": foreign})


def _operations_total(tracked: TrackedCommunicator, entry: Any) -> int | None:
    """The count from the communicator's birth on, as far as its origin is known."""
    return int(entry["operations"]) + tracked.origin.base if tracked.origin.origin else None


def open_source(context: Context) -> Nccl:
    """The source, ready to read. Raises SourceUnavailableError where probes cannot be had."""
    kernel, attachments = context.probes()
    config = context.config
    governor, most = context.governor, config.nccl_calls_per_second
    assert governor is not None  # where there are probes there is one
    too_many = above(most) if most else lambda pid, _, resumed: governor.exceeds(pid, CALLS, resumed)
    throttle = ProbeThrottle(attachments, config.nccl_probes, too_many)
    return Nccl(context, kernel, Inspector(attachments, config.progress_hertz), throttle)
