"""What the agent remembers of each communicator that the probes count, by its index in the kernel's array."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agent.nccl.inspector import Inspector
from agent.nccl.operation_count import ATTACH, MEMORY, CountOrigin, CountTracker, continued
from agent.nccl.probe_throttle import Calls
from agent.nccl.proxy_sampler import ProxyShares
from agent.nccl.row import STILL_S
from agent.probes.training_processes import TrainingProcess
from agent.process.procfs import Process
from bpf.maps import Map
from store.schema.sample import Value

REPLAYED_S = 10.0
"""Transfers that move so long after the last call are hardly of calls that ran ahead."""
_UNPROMPTED = 3
"""Queries that prove a watchdog: one may belong to a call that was under way."""
_TRIES = 5
"""How often both counts are read until no operation comes between the two."""


@dataclass(slots=True)
class TrackedCommunicator:
    """The state of one entry of the kernel's array."""

    process: Process
    gpu: str
    slot: int
    """The lowest number that no other communicator of its GPU has: the number of series stays bounded."""
    origin: CountOrigin = field(default_factory=CountOrigin)
    count: CountTracker = field(default_factory=CountTracker)
    from_memory: bool = False
    """Its calls went uncounted at some time: the count goes on from memory."""
    queries: int = 0
    operations: int = 0
    """Both as last counted by the probes."""
    unprompted: int = 0
    """Queries that came while no operation was enqueued, since the last one, or until they proved a watchdog."""
    replayed: bool = False
    """CUDA graphs replay its operations: transfers have moved long after the last call."""
    blocked_ns: int = 0
    """For how long it has blocked the host; never decreases."""

    def note_queries(self, queries: int, operations: int) -> bool:
        """Whether a watchdog asked since the last call.

        NCCL asks itself as well, at most calls (2.32): a watchdog is what asks while no operation is enqueued.
        """
        new, enqueued = queries - self.queries, operations - self.operations
        self.queries, self.operations = queries, operations
        if not enqueued and operations:
            self.unprompted += new
        elif self.unprompted < _UNPROMPTED:
            self.unprompted = 0
        return new > 0 and self.watched

    @property
    def watched(self) -> bool:
        """Whether a watchdog asks after its work, and no graphs replay it, which a watchdog does not see."""
        return self.unprompted >= _UNPROMPTED and not self.replayed

    def note_replays(self, idle_seconds: float | None, shares: ProxyShares | None) -> float | None:
        """Whether graphs replay its operations, 0 or 1; None: not known.

        It follows from the time since the last call, and from what the proxy did since.
        """
        if idle_seconds is None or shares is None:
            return None
        if idle_seconds < REPLAYED_S:
            self.replayed = False
        elif shares.active > 0 and shares.still < STILL_S:
            self.replayed = True
        return float(self.replayed)

    def host_blocked_ns(self, entry: Any, clock: int) -> int:
        """For how long it has blocked the host, a wait under way included.

        Where two threads wait on one communicator, the kernel takes a part of its sum back.
        """
        since = int(entry["blocked_since"])
        blocked = int(entry["blocked_ns"]) + (max(clock - since, 0) if since else 0)
        self.blocked_ns = max(self.blocked_ns, blocked)
        return self.blocked_ns


class CommunicatorTable:
    """Tracks the communicators of living processes."""

    def __init__(self, slots: Map, inspector: Inspector) -> None:
        self._slots, self._inspector = slots, inspector
        self._tracked: dict[int, TrackedCommunicator] = {}

    def get(self, index: int) -> TrackedCommunicator | None:
        """What is remembered of that entry."""
        return self._tracked.get(index)

    def track(self, index: int, trainer: TrainingProcess, gpu: str) -> TrackedCommunicator:
        """The state of that entry, begun where it is new; its GPU may be known only after the first call."""
        tracked = self._tracked.get(index)
        if tracked is None or tracked.gpu != gpu:
            taken = {other.slot for other in self._tracked.values() if other.gpu == gpu}
            slot = next(slot for slot in range(len(taken) + 1) if slot not in taken)
            tracked = tracked or TrackedCommunicator(trainer.process, gpu, slot)
            tracked.gpu, tracked.slot = gpu, slot
            self._tracked[index] = tracked
        return tracked

    def drop(self, index: int) -> None:
        """Forget the entry."""
        self._tracked.pop(index, None)

    def compare_counts(self, index: int, entry: Any, born: bool) -> None:
        """Learn where our count begins, and whether the library's own moves in step with it."""
        tracked = self._tracked[index]
        origin, count = tracked.origin, tracked.count
        if tracked.from_memory:
            return
        operations, own = self._read_both(index, entry)
        origin.settle(born, operations, own)
        if origin.origin and own is not None:
            count.compare(operations + origin.base, own)
            if count.in_step and origin.origin == MEMORY:
                # An operation was under way when the base was learned.
                origin.base, count.total, count.apart = origin.base + count.apart, count.total + count.apart, 0
            if count.refuted:
                origin.refute()

    def _read_both(self, index: int, entry: Any) -> tuple[int, int | None]:
        """Our count and the library's own, read with no call in between; None: it cannot be read."""
        slots, operations = self._slots.rows(), 0
        for _ in range(_TRIES):
            operations = int(slots[index]["operations"])
            own = self._inspector.operations(int(entry["tgid"]), int(entry["comm"]))
            if own is None or operations == int(slots[index]["operations"]):
                return operations, own
        return operations, None

    def continue_row(
        self, index: int, entry: Any, values: dict[str, Value], suspended: bool, clock: int
    ) -> dict[str, Value]:
        """The row as far as it is known without probes; a count that once went on from memory stays so."""
        tracked = self._tracked[index]
        if suspended and not tracked.from_memory:
            if not tracked.count.in_step:
                # Calls went uncounted from its birth on. Only where the library counts every call is that known.
                if not self._inspector.counts_calls(int(entry["tgid"]), int(entry["comm"])):
                    return values | {"counted_from": ATTACH}
                tracked.count = CountTracker(in_step=True)
            tracked.from_memory = True
        if not tracked.from_memory:
            return values
        own = self._inspector.operations(int(entry["tgid"]), int(entry["comm"]))
        row = continued(values, own, tracked.count, clock)
        return row if suspended else values | {name: row[name] for name in ("operations_total", "counted_from")}

    def calls(self, processes: Mapping[int, Any], announced: Callable[[int], set[int]]) -> dict[int, Calls]:
        """The calls of each process, by number, for the throttle of probes.

        `processes` are entries of the kernel's array of processes, `announced` gives the communicators of a process.
        """
        tracked_of: dict[int, list[tuple[int, TrackedCommunicator]]] = {pid: [] for pid in processes}
        counts = {pid: int(row["group_starts"]) + int(row["group_ends"]) for pid, row in processes.items()}
        slots = self._slots.rows()
        for index, tracked in self._tracked.items():
            if (pid := tracked.process.pid) in tracked_of:
                tracked_of[pid].append((int(slots[index]["comm"]), tracked))
                counts[pid] += int(slots[index]["operations"]) + int(slots[index]["queries"])
        calls = {}
        for pid, members in tracked_of.items():
            readable = all(one.count.in_step and self._inspector.knows(pid, comm) for comm, one in members)
            unseen = announced(pid) - {comm for comm, _ in members}
            calls[pid] = Calls(counts[pid], bool(members) and readable, len(unseen))
        return calls

    def uncounted(self, suspended: Callable[[Process], bool]) -> dict[int, int]:
        """By number of each process without probes on its calls, the operations that its memory shows."""
        operations = Counter[int]()
        for tracked in self._tracked.values():
            if suspended(tracked.process):
                operations[tracked.process.pid] += max(tracked.count.total, 0)
        return dict(operations)
