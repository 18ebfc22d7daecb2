"""The Python interpreters of training processes and the probes on their garbage collection, one process at a time."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from typing import Any

import numpy as np

from agent.binaries.symbol_lookup import LookupResult, SymbolLookup
from agent.probes.governor import ProbeGovernor
from agent.probes.groups import PYTHON
from agent.probes.uretprobe_policy import UretprobePolicy
from agent.process.memory import Memory
from agent.process.procfs import MappedFile, Process, Processes
from agent.python_gc.cpython import RUNTIME, WANTED, Plan, plan
from agent.python_gc.gc_probe import GcProbe, State
from agent.python_gc.gc_stats import count_collections, find_statistics
from agent.system.file_identity import identity, open_first
from bpf.loader import Kernel
from bpf.uprobe import attach, detach

_CHECK_NS = 5_000_000_000
_REST_NS = 60_000_000_000
_MOST_LOST = 8
_TRIES = 3
_CANDIDATES = 4
_ANSWERS = 256
FileKey = tuple[str, int]


class GcProbes:
    """Finds the interpreters of training processes, attaches probes, and detaches those that cost too much."""

    def __init__(self, kernel: Kernel, processes: Processes, returns: UretprobePolicy, governor: ProbeGovernor) -> None:
        self._kernel, self._processes, self._returns = kernel, processes, returns
        self._governor = governor
        self._array, self._index_of = kernel.maps["gc_entries"], kernel.maps["gc_entry_of"]
        self._free = list(range(self._array.capacity))
        self._finder = SymbolLookup(list(WANTED), layout_for="")
        self._answers: dict[FileKey, LookupResult | None] = {}  # None: asked, not yet answered
        self.probes: dict[Process, GcProbe] = {}

    def update(self, now: int, living: Iterable[Process]) -> None:
        """Follow the training processes alive at this time (Unix ns)."""
        current = set(living)
        self._drop([probe for process, probe in self.probes.items() if process not in current])
        for process in current - self.probes.keys():
            self._see(process)
        for answer in self._finder.poll():
            self._answers[answer.key] = answer
        for probe in self.probes.values():
            if probe.state is State.LOOKUP:
                self._decide(probe, now)
            elif probe.state is State.ATTACHED:
                self._fetch(probe)
                self._limit_rate(probe, now)
            elif probe.state is State.RATE_LIMITED and not 0 <= now - probe.checked_at < _REST_NS:
                self._attach(probe, now)

    def pauses(self, probe: GcProbe) -> int | None:
        """How many collections a process has had since it was attached to, or by its own count; None: not known."""
        if probe.state is State.ATTACHED:
            return int(self.entry(probe)["pauses"])
        if probe.state is State.FROM_MEMORY and probe.memory is not None:
            return count_collections(probe.memory, probe.statistics)
        return None

    def entry(self, probe: GcProbe) -> Any:
        """What the kernel has counted for a process that was attached to."""
        return self._array.rows()[probe.index]

    @property
    def foreign_hits(self) -> int:
        """Hits of processes that were not meant: children that inherited the breakpoints."""
        return int(self._kernel.maps["gc_foreign_hits"].rows()[0])

    def close(self) -> None:
        """Take every probe off."""
        self._finder.close()
        self._drop(list(self.probes.values()))

    def _see(self, process: Process) -> None:
        try:
            files, program = self._processes.files(process), self._processes.program(process)
        except OSError:
            return  # it has ended: the next update finds that
        # libpython first: an interpreter that maps it is a shell around it.
        ours = [file for file in files if _is_python(file) or file.inode == program]
        ours.sort(key=lambda file: "libpython" not in os.path.basename(file.path))
        self.probes[process] = GcProbe(process, ours[:_CANDIDATES])
        if len(self._answers) > _ANSWERS:
            self._answers = {key: answer for key, answer in self._answers.items() if answer is None}
        for file in ours[:_CANDIDATES]:
            self._ask(file)

    def _ask(self, file: MappedFile) -> None:
        key = (file.device, file.inode)
        if key not in self._answers:
            self._answers[key] = None
            self._finder.ask(key, self._processes.paths(file))

    def _decide(self, probe: GcProbe, now: int) -> None:
        """Once all files of a process are known: watch the first that is an interpreter."""
        for file in probe.candidates:
            self._ask(file)  # again, where the answers were cleared in between
        answers = [(file, self._answers[file.device, file.inode]) for file in probe.candidates]
        if any(answer is None for _, answer in answers) or self._ask_again(probe, answers):
            return
        refused = self._returns.refused(probe.process.pid)
        for file, answer in answers:
            assert answer is not None
            found = plan(answer.functions or {}, answer.semaphores, refused)
            if found is not None and (probe.file is None or found.points):
                probe.file, probe.answer, probe.plan = file, answer, found
                if found.points:
                    break
            elif found is None and probe.file is None and (why := answer.error or answer.gone) and _is_python(file):
                probe.file, probe.plan = file, Plan(reason=f"cannot be read ({why})")
        if probe.file is not None:
            self._attach(probe, now)
        else:
            probe.transition(State.NO_PYTHON)

    def _ask_again(self, probe: GcProbe, answers: list[tuple[MappedFile, LookupResult | None]]) -> bool:
        """Whether there is more to come: what could not be opened through one process is asked for through this one."""
        gone = [(file.device, file.inode) for file, answer in answers if answer is not None and answer.gone]
        for key in gone:
            self._answers.pop(key, None)
        probe.tries += 1
        return bool(gone) and probe.tries < _TRIES

    def _attach(self, probe: GcProbe, now: int) -> None:
        if not probe.plan.points:
            probe.transition(*self._open_memory(probe))
        elif probe.index < 0 and not self._admit(probe):
            probe.transition(State.BLOCKED, f"more than {self._array.capacity} processes are watched already")
        else:
            probe.transition(*self._try_probes(probe, now))

    def _try_probes(self, probe: GcProbe, now: int) -> tuple[State, str]:
        """Put the probes on; the state that follows, and why."""
        try:
            self._put_on(probe)
        except (FileNotFoundError, ProcessLookupError):
            self._take_off(probe)
            return State.NO_PYTHON, ""  # the process has ended; the next update drops it
        except OSError as error:
            self._take_off(probe)
            if error.errno == errno.ESTALE and probe.file is not None:
                self._answers.pop((probe.file.device, probe.file.inode), None)
                if probe.tries < _TRIES:  # a mere touch or link of the file looks like that: it is read again
                    probe.file = None
                    return State.LOOKUP, ""
            return State.BLOCKED, f"no probes on its garbage collection: {error.strerror}"
        probe.checked_at, probe.counted = now, self.entry(probe).copy()
        return State.ATTACHED, probe.plan.reason

    def _open_memory(self, probe: GcProbe) -> tuple[State, str]:
        """Find the interpreter's own count of its collections; the state that follows, and why."""
        assert probe.file is not None
        place, size = probe.answer.variables.get(RUNTIME, (0, 0))
        try:
            memory = Memory(probe.process.pid)
        except OSError as error:
            return State.BLOCKED, f"{probe.plan.reason}, and its memory cannot be read: {error.strerror}"
        address = find_statistics(memory, int(probe.file.addresses.split("-")[0], 16) + place, size)
        if address is None:
            memory.close()
            return State.BLOCKED, f"{probe.plan.reason}: its garbage collections cannot be seen"
        probe.memory, probe.statistics = memory, address
        return State.FROM_MEMORY, f"{probe.plan.reason}: collections are counted in its memory, not timed"

    def _put_on(self, probe: GcProbe) -> None:
        """Through a descriptor, and only after a second look: its process may have put another file at that path."""
        assert probe.file is not None
        descriptor = open_first(self._processes.paths(probe.file))
        try:
            if identity(descriptor) != probe.answer.identity:
                raise OSError(errno.ESTALE, "the file was replaced since it was read")
            for program, point in probe.plan.points:
                place = f"/proc/self/fd/{descriptor}"
                probe.probes.append(attach(self._kernel.programs[program], place, point, probe.process.pid))
        finally:
            os.close(descriptor)

    def _admit(self, probe: GcProbe) -> bool:
        """Give a process an entry in the kernel, by which its hits are distinguished from those of other processes."""
        if not self._free:
            return False
        probe.index = self._free.pop()
        self._write(probe, np.zeros(1, self._array.dtype)[0])
        index = probe.index.to_bytes(4, "little")
        self._index_of.update(probe.process.pid.to_bytes(8, "little"), index)
        return True

    def _fetch(self, probe: GcProbe) -> None:
        """Have the process's memory hold the word that a probe could not read: a probe cannot wait for the disk."""
        entry = self.entry(probe)
        if entry["lost"] == probe.fetched:
            return
        probe.fetched = int(entry["lost"])
        try:
            memory = Memory(probe.process.pid)
        except OSError:
            return  # not ours to read, or just ended
        memory.read(int(entry["unread"]), 4)
        memory.close()

    def _limit_rate(self, probe: GcProbe, now: int) -> None:
        """Take the probes off for a while where they are hit too often, and for good where they show nothing."""
        elapsed = now - probe.checked_at
        if 0 <= elapsed < _CHECK_NS:
            return
        entry = self.entry(probe).copy()
        hits, lost, pauses = (int(entry[name] - probe.counted[name]) for name in ("hits", "lost", "pauses"))
        probe.checked_at, probe.counted = now, entry
        rate = hits * 1e9 / max(elapsed, _CHECK_NS)
        pid, stepped = probe.process.pid, {point.offset for _, point in probe.plan.points} & set(probe.answer.stepped)
        self._governor.report(pid, PYTHON, rate * self._governor.cost.of(bool(stepped)))
        if self._governor.exceeds(pid, PYTHON):
            reason = f"{self._governor.why(pid, PYTHON)}: off for {_REST_NS // 1_000_000_000} s"
            self._take_off(probe)
            self._governor.report(pid, PYTHON, 0.0)
            probe.transition(State.RATE_LIMITED, reason)
        elif lost > _MOST_LOST and not pauses:
            self._take_off(probe)
            probe.transition(State.BLOCKED, "beginning and end of a collection look the same")

    def _take_off(self, probe: GcProbe) -> None:
        detach(probe.probes)
        probe.probes = []
        entry = self.entry(probe).copy()
        entry["since"] = 0  # a collection that is under way will end unseen
        self._write(probe, entry)

    def _write(self, probe: GcProbe, entry: Any) -> None:
        entry["tgid"] = probe.process.pid
        self._array.update(probe.index.to_bytes(4, "little"), entry.tobytes())

    def _drop(self, gone: list[GcProbe]) -> None:
        """Release processes, all of them together: detaching a probe waits for the kernel."""
        detach([descriptor for probe in gone for descriptor in probe.probes])
        for probe in gone:
            del self.probes[probe.process]
            if probe.memory is not None:
                probe.memory.close()
            if probe.index >= 0:
                self._index_of.delete(probe.process.pid.to_bytes(8, "little"))
                self._free.append(probe.index)


def _is_python(file: MappedFile) -> bool:
    return "python" in os.path.basename(file.path).lower()
