"""NCCL communicators of each training process: what was asked of them, and how far they are."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from agent.attachments import Attachments
from agent.communicators import Communicator, Communicators
from agent.context import Context
from agent.looks import Looks
from agent.memory import Memory
from agent.pool import Pool
from agent.training import Trainee
from bpf.loader import Kernel
from store.sample import Sample, Value

OPERATIONS = (
    "AllReduce",
    "ReduceScatter",
    "AllGather",
    "Broadcast",
    "Reduce",
    "Send",
    "Recv",
    "AlltoAll",
    "Gather",
    "Scatter",
)
"""In the order of bpf/nccl.bpf.c."""
DATATYPES = ("i8", "u8", "i32", "u32", "i64", "u64", "f16", "f32", "f64", "bf16", "f8e4m3", "f8e5m2")
"""In the order of ncclDataType_t (nccl.h)."""
_TRIES = 60
"""Readings after which a communicator that cannot be read from memory is left alone."""


class Nccl:
    """One row a communicator."""

    def __init__(self, context: Context, kernel: Kernel, attachments: Attachments) -> None:
        maps = kernel.maps
        self._training = context.training
        self._attachments = attachments
        self._communicators = Communicators(context.config.name)
        self._ring, self._losses, self._processes = kernel.rings["events"], maps["losses"], maps["processes"]
        self._pool = Pool(maps["slots"], maps["slot_of"], maps["free_slots"])
        self._looks = Looks(context.config.progress_hertz) if context.config.progress_hertz else None
        self._memories: dict[int, Memory] = {}
        self._numbers: dict[int, tuple[str, int]] = {}  # index in the kernel's array: gpu and slot
        self._queries: dict[int, int] = {}
        self._tries: dict[tuple[int, int], int] = {}

    def read(self, now: int) -> list[Sample]:
        """A row for each communicator of a living process, and an event for each process that left some behind."""
        self._communicators.apply(self._ring.drain())
        clock = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        rows = self._processes.rows()
        lost = {int(row["tgid"]): int(row["lost"]) for row in rows[np.flatnonzero(rows["tgid"])]}
        samples: list[Sample] = []
        left: dict[int, list[Communicator]] = {}
        for index, entry in zip(*self._entries(), strict=True):
            pid, comm = int(entry["tgid"]), int(entry["comm"])
            trainee = self._training.get(pid)
            if trainee is None or entry["ended"]:
                if trainee is None and not entry["ended"]:
                    left.setdefault(pid, []).append(self._communicators.known.get((pid, comm), Communicator()))
                self._retire(index, entry, trainee)
                continue
            values = self._values(index, entry, trainee, clock)
            samples.append(Sample("nccl", values | {"lost_total": lost.get(pid, 0)}))
        samples += [sample for pid, held in left.items() if (sample := self._farewell(pid, held))]
        self._forget(set(left))
        return [*samples, self._loss()]

    def close(self) -> None:
        """End the looks and let go of the processes."""
        if self._looks:
            self._looks.close()
        self._forget(set(self._memories))

    def _entries(self) -> tuple[list[int], Any]:
        indices, entries = self._pool.taken()
        return indices.tolist(), entries

    def _values(self, index: int, entry: Any, trainee: Trainee, clock: int) -> dict[str, Value]:
        pid, comm = int(entry["tgid"]), int(entry["comm"])
        known = self._identify(pid, comm, trainee)
        gpu, slot = self._number(index, trainee.gpu)
        since = int(entry["blocked_since"])
        waiting = max(clock - since, 0) if since else 0
        queries = int(entry["queries"])
        asked, self._queries[index] = queries - self._queries.get(index, 0), queries
        shares = self._looks.take((pid, comm)) if self._looks else None
        return {
            "gpu": gpu,
            "slot": str(slot),
            "comm": known.identity,
            "rank": known.rank,
            "ranks": known.ranks,
            "pid": pid,
            "operation": _operation(entry),
            "operations_total": int(entry["operations"]),
            "bytes_total": int(entry["bytes"]),
            # A framework's watchdog asks after its unfinished work only; without one nothing is known.
            "pending": float(asked > 0) if queries else None,
            "idle_seconds": max(clock - int(entry["last_ns"]), 0) / 1e9 if entry["last_ns"] else None,
            "host_blocked_seconds_total": (int(entry["blocked_ns"]) + waiting) / 1e9,
            "send_pending_ratio": shares[0] if shares else None,
            "receive_pending_ratio": shares[1] if shares else None,
        }

    def _identify(self, pid: int, comm: int, trainee: Trainee) -> Communicator:
        known = self._communicators.look_up(pid, comm, self._pointer)
        tries = self._tries.get((pid, comm), 0)
        if tries > _TRIES:
            return known
        layout = self._attachments.layout_of(trainee.process)
        memory = self._memory(pid)
        if layout is None or memory is None:
            return known
        self._tries[pid, comm] = tries + 1
        told = memory.identity(comm, layout)
        if told is None:
            return known
        self._tries[pid, comm] = _TRIES + 1
        self._communicators.learn(pid, comm, f"{told.comm_hash:016x}", told.rank, told.ranks)
        if self._looks:
            self._looks.watch((pid, comm), memory, layout)
        return self._communicators.known[pid, comm]

    def _memory(self, pid: int) -> Memory | None:
        if pid not in self._memories:
            try:
                self._memories[pid] = Memory(pid)
            except OSError:
                return None  # not ours to read, or just ended: identity then comes from the probes alone
        return self._memories[pid]

    def _pointer(self, pid: int, address: int) -> int | None:
        memory = self._memory(pid)
        return memory.word(address) if memory else None

    def _number(self, index: int, gpu: str) -> tuple[str, int]:
        """The lowest number that no other communicator of this GPU has: the number of series stays bounded."""
        if index not in self._numbers:
            taken = {slot for other, slot in self._numbers.values() if other == gpu}
            self._numbers[index] = gpu, next(slot for slot in range(len(taken) + 1) if slot not in taken)
        return self._numbers[index]

    def _retire(self, index: int, entry: Any, trainee: Trainee | None) -> None:
        key = np.array([entry["comm"], entry["tgid"]], np.uint64).tobytes()
        self._pool.give_back(index, None if entry["ended"] else key)
        self._numbers.pop(index, None)
        self._queries.pop(index, None)
        pid, comm = int(entry["tgid"]), int(entry["comm"])
        self._tries.pop((pid, comm), None)
        if self._looks:
            self._looks.forget(lambda watched: watched == (pid, comm))
        if trainee is not None and self._communicators.known.get((pid, comm), Communicator()).ended:
            self._communicators.forget(pid, comm)

    def _farewell(self, pid: int, held: list[Communicator]) -> Sample | None:
        """The event of a process that ended without leaving its communicators; None where it said farewell."""
        open_ones = [communicator for communicator in held if not communicator.ended]
        trainee = self._training.last_known(pid)
        if not open_ones or trainee is None:
            return None
        world = max(open_ones, key=lambda communicator: communicator.ranks or 0)
        who = f"rank {world.rank} of {world.ranks}" if world.rank is not None else f"process {pid}"
        message = f"{who} (pid {pid}) ended without leaving {len(open_ones)} communicator(s)"
        values = {"source": "nccl", "code": "rank_exit", "device": f"gpu:{trainee.gpu}", "severity": "crit"}
        return Sample("event", values | {"message": message})

    def _forget(self, pids: set[int]) -> None:
        if pids and self._looks:
            self._looks.forget(lambda key: key[0] in pids)
        for pid in pids:
            self._communicators.forget(pid)
            memory = self._memories.pop(pid, None)
            if memory:
                memory.close()

    def _loss(self) -> Sample:
        counts = self._losses.rows().copy()
        return Sample(
            "source", {"source": "kernel", "lost_total": int(counts[1:].sum()), "foreign_total": int(counts[0])}
        )


def _operation(entry: Any) -> str | None:
    if not entry["operations"]:
        return None
    kind, datatype = int(entry["last_kind"]), int(entry["last_datatype"])
    name = OPERATIONS[kind] if kind < len(OPERATIONS) else str(kind)
    return f"{name}:{DATATYPES[datatype] if datatype < len(DATATYPES) else datatype}:{int(entry['last_count'])}"


def open_source(context: Context) -> Nccl:
    """The source, ready to read. Raises NothingThereError where probes cannot be had."""
    return Nccl(context, *context.probes())
