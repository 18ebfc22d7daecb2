"""Reads the memory of training processes: identity, operation count and proxy of each communicator."""

from __future__ import annotations

from agent.binaries.struct_layouts import Layout
from agent.nccl.proxy_sampler import ProxySampler, ProxyShares
from agent.probes.attachments import Attachments
from agent.process.memory import Identity, Memory
from agent.process.procfs import Process

_TRIES = 60
"""Readings after which a communicator that cannot be read is left alone."""
Key = tuple[int, int]
"""Process number and address of a communicator in it."""


class Inspector:
    """Opens the memory of processes with a library of known layout; what cannot be read is None."""

    def __init__(self, attachments: Attachments, hertz: float) -> None:
        self._attachments = attachments
        self._sampler = ProxySampler(hertz) if hertz else None
        self._memories: dict[int, Memory | None] = {}
        self._opened: dict[int, Process] = {}
        self._found: dict[Key, tuple[Identity, Layout, bool]] = {}
        self._tries: dict[Key, int] = {}

    def identify(self, process: Process, comm: int) -> Identity | None:
        """Identity of a communicator; once it was plausible, its transfers are sampled from then on."""
        key = process.pid, comm
        if self._opened.get(process.pid, process) != process:  # it executes another program: its memory is another
            self.release(process.pid)
        self._opened[process.pid] = process
        if key in self._found:
            return self._found[key][0]
        layout, memory = self._attachments.layout_of(process), self._memory(process.pid)
        if layout is None or memory is None or self._tries.get(key, 0) > _TRIES:
            return None
        self._tries[key] = self._tries.get(key, 0) + 1
        identity = memory.identity(comm, layout)
        if identity is not None:
            self._found[key] = identity, layout, self._attachments.counts_calls(process)
            if self._sampler:
                self._sampler.watch(key, memory, layout)
        return identity

    def knows(self, pid: int, comm: int) -> bool:
        """Whether a communicator was identified."""
        return (pid, comm) in self._found

    def operations(self, pid: int, comm: int) -> int | None:
        """How many operations the library itself has counted on an identified communicator."""
        found, memory = self._found.get((pid, comm)), self._memory(pid)
        return memory.operations(comm, found[1], found[2]) if found and memory else None

    def counts_calls(self, pid: int, comm: int) -> bool:
        """Whether the library is known to count every call on an identified communicator."""
        found = self._found.get((pid, comm))
        return found is not None and found[2]

    def shares(self, pid: int, comm: int) -> ProxyShares | None:
        """The shares of the samples of a communicator since the last call."""
        return self._sampler.pop_shares((pid, comm)) if self._sampler else None

    def pointer(self, pid: int, address: int) -> int | None:
        """The pointer at an address of a process."""
        memory = self._memory(pid)
        return memory.word(address) if memory else None

    def processes(self) -> set[int]:
        """The processes with open memory."""
        return set(self._memories)

    def release(self, pid: int, comm: int | None = None) -> None:
        """Drop one communicator, or a process that has ended with all it had."""
        for table in (self._found, self._tries):
            for key in [key for key in table if key[0] == pid and comm in (None, key[1])]:
                del table[key]
        if self._sampler:
            self._sampler.unwatch(lambda key: key[0] == pid and comm in (None, key[1]))
        if comm is None:
            self._opened.pop(pid, None)
            if memory := self._memories.pop(pid, None):
                memory.close()

    def close(self) -> None:
        """Stop to sample, and release the processes."""
        if self._sampler:
            self._sampler.close()
        for pid in list(self._memories):
            self.release(pid)

    def _memory(self, pid: int) -> Memory | None:
        if pid not in self._memories:
            try:
                self._memories[pid] = Memory(pid)
            except OSError:
                self._memories[pid] = None  # not ours to read, or just ended: the probes alone must do
        return self._memories[pid]
