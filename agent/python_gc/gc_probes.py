"""The Python interpreters of training processes and the probes on their garbage collection, one process at a time."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from agent.binaries.symbol_lookup import Answer, Libraries
from agent.probes.uretprobe_policy import UretprobePolicy
from agent.process.memory import Memory
from agent.process.procfs import MappedFile, Process, Processes
from agent.python_gc.cpython import RUNTIME, WANTED, Plan, plan
from agent.python_gc.gc_stats import count_collections, find_statistics
from agent.system.file_identity import identity, open_first
from bpf.loader import Kernel
from bpf.uprobe import attach, detach

HITS_PER_SECOND = 1000
"""More than that is not worth what it costs the process: at 1 to 10 microseconds each, a hundredth of its time."""
_JUDGED_NS = 5_000_000_000
_REST_NS = 60_000_000_000
_UNTOLD = 8
_TRIES = 3
_CANDIDATES = 4
_ANSWERS = 256
FileKey = tuple[str, int]


@dataclass
class GcProbe:
    """One training process, and how it stands with its interpreter."""

    process: Process
    candidates: list[MappedFile]
    state: str = "asked"
    """asked (its files are being read), none (no Python), on, read (memory instead of probes), resting, blocked."""
    reason: str = ""
    file: MappedFile | None = None
    """The interpreter, once it is known, and what was read of it."""
    answer: Answer = field(default_factory=lambda: Answer(None))
    plan: Plan = field(default_factory=Plan)
    index: int = -1
    """Its entry in the kernel's array."""
    probes: list[int] = field(default_factory=list)
    judged: int = 0
    tries: int = 0
    counted: Any = None
    """What the kernel had counted by then."""
    memory: Memory | None = None
    statistics: int = 0
    """Where the interpreter's own count lies, when there is nothing to probe."""
    fetched: int = 0
    """Hits that could not be told apart, when the word that would tell them was last fetched."""


class GcProbes:
    """Follows the training processes: finds their interpreters, attaches, takes off what costs too much."""

    def __init__(self, kernel: Kernel, processes: Processes, returns: UretprobePolicy) -> None:
        self._kernel, self._processes, self._returns = kernel, processes, returns
        self._array, self._index_of = kernel.maps["collectors"], kernel.maps["collector_of"]
        self._free = list(range(self._array.capacity))
        self._finder = Libraries(list(WANTED), layout_for="")
        self._answers: dict[FileKey, Answer | None] = {}  # None: asked, not yet answered
        self.collectors: dict[Process, GcProbe] = {}

    def update(self, now: int, living: Iterable[Process]) -> None:
        """One look at the training processes alive at this time (Unix ns)."""
        current = set(living)
        self._drop([collector for process, collector in self.collectors.items() if process not in current])
        for process in current - self.collectors.keys():
            self._see(process)
        for answer in self._finder.poll():
            self._answers[answer.key] = answer
        for collector in self.collectors.values():
            if collector.state == "asked":
                self._decide(collector, now)
            elif collector.state == "on":
                self._fetch(collector)
                self._judge(collector, now)
            elif collector.state == "resting" and not 0 <= now - collector.judged < _REST_NS:
                self._attach(collector, now)

    def pauses(self, collector: GcProbe) -> int | None:
        """How many collections a process has had since it was attached to, or by its own count; None: not known."""
        if collector.state == "on":
            return int(self.entry(collector)["pauses"])
        if collector.state == "read" and collector.memory is not None:
            return count_collections(collector.memory, collector.statistics)
        return None

    def entry(self, collector: GcProbe) -> Any:
        """What the kernel has counted for a process that was attached to."""
        return self._array.rows()[collector.index]

    @property
    def strangers(self) -> int:
        """Hits of processes that were not meant: children that inherited the breakpoints."""
        return int(self._kernel.maps["python_strangers"].rows()[0])

    def close(self) -> None:
        """Take every probe off."""
        self._finder.close()
        self._drop(list(self.collectors.values()))

    def _see(self, process: Process) -> None:
        try:
            files, program = self._processes.files(process), self._processes.program(process)
        except OSError:
            return  # it has ended, as the next look will find
        # libpython first: an interpreter that maps it is a shell around it.
        ours = [file for file in files if _is_python(file) or file.inode == program]
        ours.sort(key=lambda file: "libpython" not in os.path.basename(file.path))
        self.collectors[process] = GcProbe(process, ours[:_CANDIDATES])
        if len(self._answers) > _ANSWERS:
            self._answers = {key: answer for key, answer in self._answers.items() if answer is None}
        for file in ours[:_CANDIDATES]:
            self._ask(file)

    def _ask(self, file: MappedFile) -> None:
        key = (file.device, file.inode)
        if key not in self._answers:
            self._answers[key] = None
            self._finder.ask(key, self._processes.paths(file))

    def _decide(self, collector: GcProbe, now: int) -> None:
        """Once all files of a process are known: watch the first that is an interpreter."""
        for file in collector.candidates:
            self._ask(file)  # again, where the answers were cleared in between
        answers = [(file, self._answers[file.device, file.inode]) for file in collector.candidates]
        if any(answer is None for _, answer in answers) or self._ask_again(collector, answers):
            return
        collector.state = "none"
        refused = self._returns.refused(collector.process.pid)
        for file, answer in answers:
            assert answer is not None
            found = plan(answer.functions or {}, answer.semaphores, refused)
            if found is not None and (collector.file is None or found.points):
                collector.file, collector.answer, collector.plan = file, answer, found
                if found.points:
                    break
            elif found is None and collector.file is None and (why := answer.error or answer.gone) and _is_python(file):
                collector.file, collector.plan = file, Plan(reason=f"cannot be read ({why})")
        if collector.file is not None:
            self._attach(collector, now)

    def _ask_again(self, collector: GcProbe, answers: list[tuple[MappedFile, Answer | None]]) -> bool:
        """Whether there is more to come: what could not be opened through one process is asked for through this one."""
        gone = [(file.device, file.inode) for file, answer in answers if answer is not None and answer.gone]
        for key in gone:
            self._answers.pop(key, None)
        collector.tries += 1
        return bool(gone) and collector.tries < _TRIES

    def _attach(self, collector: GcProbe, now: int) -> None:
        collector.state, collector.reason = "blocked", collector.plan.reason
        if not collector.plan.points:
            self._open_memory(collector)
            return
        if collector.index < 0 and not self._admit(collector):
            return
        try:
            self._put_on(collector)
        except (FileNotFoundError, ProcessLookupError):
            self._take_off(collector)
            collector.state = "none"  # it has ended, as the next look will find
        except OSError as error:
            self._take_off(collector)
            collector.reason = f"no probes on its garbage collection: {error.strerror}"
            if error.errno == errno.ESTALE and collector.file is not None:
                self._answers.pop((collector.file.device, collector.file.inode), None)
                if collector.tries < _TRIES:  # a mere touch or link of the file looks like that: it is read anew
                    collector.state, collector.file = "asked", None
        else:
            collector.state, collector.judged, collector.counted = "on", now, self.entry(collector).copy()

    def _open_memory(self, collector: GcProbe) -> None:
        """Find the interpreter's own count of its collections."""
        assert collector.file is not None
        place, size = collector.answer.variables.get(RUNTIME, (0, 0))
        try:
            memory = Memory(collector.process.pid)
        except OSError as error:
            collector.reason += f", and its memory cannot be read: {error.strerror}"
            return
        found = find_statistics(memory, int(collector.file.addresses.split("-")[0], 16) + place, size)
        if found is None:
            memory.close()
            collector.reason += ": its garbage collections cannot be seen"
            return
        collector.memory, collector.statistics, collector.state = memory, found, "read"
        collector.reason += ": collections are counted in its memory, not timed"

    def _put_on(self, collector: GcProbe) -> None:
        """Through a descriptor, and only after a second look: its process may have put another file at that path."""
        assert collector.file is not None
        descriptor = open_first(self._processes.paths(collector.file))
        try:
            if identity(descriptor) != collector.answer.identity:
                raise OSError(errno.ESTALE, "the file was replaced since it was read")
            for program, point in collector.plan.points:
                place = f"/proc/self/fd/{descriptor}"
                collector.probes.append(attach(self._kernel.programs[program], place, point, collector.process.pid))
        finally:
            os.close(descriptor)

    def _admit(self, collector: GcProbe) -> bool:
        """Give a process an entry in the kernel, by which its hits are told from those of strangers."""
        if not self._free:
            collector.reason = f"more than {self._array.capacity} processes are watched already"
            return False
        collector.index = self._free.pop()
        self._write(collector, np.zeros(1, self._array.dtype)[0])
        index = collector.index.to_bytes(4, "little")
        self._index_of.update(collector.process.pid.to_bytes(8, "little"), index)
        return True

    def _fetch(self, collector: GcProbe) -> None:
        """Have the process's memory hold the word that a probe could not read: a probe cannot wait for the disk."""
        entry = self.entry(collector)
        if entry["lost"] == collector.fetched:
            return
        collector.fetched = int(entry["lost"])
        try:
            memory = Memory(collector.process.pid)
        except OSError:
            return  # not ours to read, or just ended
        memory.read(int(entry["unread"]), 4)
        memory.close()

    def _judge(self, collector: GcProbe, now: int) -> None:
        """Take the probes off for a while where they are hit too often, and for good where they tell nothing."""
        elapsed = now - collector.judged
        if 0 <= elapsed < _JUDGED_NS:
            return
        entry = self.entry(collector).copy()
        hits, lost, pauses = (int(entry[name] - collector.counted[name]) for name in ("hits", "lost", "pauses"))
        collector.judged, collector.counted = now, entry
        rate = hits * 1e9 / max(elapsed, _JUDGED_NS)
        if rate > HITS_PER_SECOND:
            self._take_off(collector)
            collector.state = "resting"
            collector.reason = f"{rate:.0f} hits a second are too many: off for {_REST_NS // 1_000_000_000} s"
        elif lost > _UNTOLD and not pauses:
            self._take_off(collector)
            collector.state, collector.reason = "blocked", "beginning and end of a collection look the same"

    def _take_off(self, collector: GcProbe) -> None:
        detach(collector.probes)
        collector.probes = []
        entry = self.entry(collector).copy()
        entry["since"] = 0  # a collection that is under way will end unseen
        self._write(collector, entry)

    def _write(self, collector: GcProbe, entry: Any) -> None:
        entry["tgid"] = collector.process.pid
        self._array.update(collector.index.to_bytes(4, "little"), entry.tobytes())

    def _drop(self, gone: list[GcProbe]) -> None:
        """Let go of processes, of all of them together: taking probes off is a wait."""
        detach([probe for collector in gone for probe in collector.probes])
        for collector in gone:
            del self.collectors[collector.process]
            if collector.memory is not None:
                collector.memory.close()
            if collector.index >= 0:
                self._index_of.delete(collector.process.pid.to_bytes(8, "little"))
                self._free.append(collector.index)


def _is_python(file: MappedFile) -> bool:
    return "python" in os.path.basename(file.path).lower()
