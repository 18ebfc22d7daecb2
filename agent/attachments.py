"""Keeps the probes where the training processes' libraries are: finds, attaches, lists, detaches."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from agent.files import identity
from agent.layouts import Layout
from agent.libraries import Answer, Libraries
from agent.processes import MappedFile, Process, Processes
from bpf.uprobe import Point, attach, detach

log = logging.getLogger(__name__)

VARIANTS = ("", "Config", "_ptsz", "_ptds")
"""Suffixes of functions that take the same arguments in the same places and share a program."""
GROUPS: dict[str, tuple[str, ...]] = {
    "launches": ("cudaLaunchKernel", "cudaLaunchKernelExC"),
    "graphs": ("cudaGraphLaunch",),
    "copies": ("cudaMemcpy", "cudaMemcpyAsync"),
    "allocations": ("cudaMalloc", "cudaMallocAsync"),
}
"""Programs that are attached only on request: their functions are called too often to be free."""
LIFE = tuple(f"ncclComm{word}" for word in ("Init", "Split", "Shrink", "Finalize", "Destroy", "Abort"))
"""Beginnings of NCCL's functions that are called seldom: they make or end communicators."""
FileKey = tuple[str, int, str]
"""Device, inode and name of a mapping, as /proc/PID/maps shows them. A file that is deleted soon leaves its number to
another, such as the next version's libraries; that one mostly has another name."""
_NAMES = ("nccl", "cudart")
_REMEMBERED = 65536
_LIBRARIES = 256


@dataclass
class Library:
    """One file on disk (or deleted from it) and the probes on it."""

    identity: str
    path: str
    """As a process that maps it calls it."""
    state: str = "on"
    """on, blocked, or gone (no process maps it any more)."""
    reason: str = ""
    layout: Layout | None = None
    probes: dict[int, int] = field(default_factory=dict)
    """Descriptors by file offset."""
    users: set[Process] = field(default_factory=set)
    hot: dict[int, str] = field(default_factory=dict)
    """NCCL's functions that a task calls over and over, by file offset."""
    quiet: bool = False
    """Those carry no probes now."""
    wanted_quiet: str = ""
    """Why they shall carry none; empty: they shall."""
    file: int = -1
    """Descriptor by which probes are put on."""

    @property
    def name(self) -> str:
        """The file's name alone."""
        return os.path.basename(self.path)


class Attachments:
    """The libraries that carry probes, and those that cannot, with the reason. Programs are descriptors by function."""

    def __init__(self, programs: Mapping[str, int], processes: Processes, groups: Iterable[str] = ()) -> None:
        wanted_groups = set(groups)
        off = {name for group, names in GROUPS.items() if group not in wanted_groups for name in names}
        self._processes = processes
        self._programs = {
            name + suffix: descriptor for name, descriptor in programs.items() if name not in off for suffix in VARIANTS
        }
        self._finder = Libraries(list(self._programs))
        self._identities: dict[FileKey, str] = {}  # "": of no interest
        self._waiting: dict[FileKey, list[MappedFile]] = {}
        self.libraries: dict[str, Library] = {}
        self.looks = 0

    def update(self) -> None:
        """One look: new processes and mappings, answers about files, users that are gone."""
        self.libraries = {key: library for key, library in self.libraries.items() if library.state != "gone"}
        for process, files in self._processes.changed():
            for file in files:
                self._see(process, file)
        for answer in self._finder.poll():
            self._learn(answer)
        for library in self.libraries.values():
            library.users = {process for process in library.users if self._processes.alive(process)}
            if not library.users:
                self._detach(library, "no process maps it any more")
            elif bool(library.wanted_quiet) != library.quiet and library.state == "on":
                self._turn(library)
        self.looks += 1

    @property
    def busy(self) -> bool:
        """Whether answers about files are still to come."""
        return bool(self._waiting) or self._finder.busy

    def mapped(self, words: Iterable[str]) -> dict[str, set[Process]]:
        """By word the processes that were seen to map a file with it in its name, able to carry probes or not."""
        seen = [(library.name, tuple(library.users)) for library in tuple(self.libraries.values())]
        waiting = [tuple(files) for files in tuple(self._waiting.values())]
        seen += [(os.path.basename(files[0].path), tuple(file.process for file in files)) for files in waiting]
        return {word: {process for name, users in seen if word in name.lower() for process in users} for word in words}

    def layout_of(self, process: Process) -> Layout | None:
        """The layout of the NCCL that a process maps, where it is known."""
        for library in tuple(self.libraries.values()):  # another thread may be adding to them
            if process in library.users and library.layout:
                return library.layout
        return None

    def close(self) -> None:
        """Take every probe off."""
        self._finder.close()
        for library in self.libraries.values():
            self._detach(library, "the agent stops")

    def _see(self, process: Process, file: MappedFile) -> None:
        key = (file.device, file.inode, os.path.basename(file.path))
        known = self._identities.get(key)
        if known:
            self.libraries[known].users.add(process)
        elif known is None:
            waiting = self._waiting.setdefault(key, [])
            waiting.append(file)
            if len(waiting) == 1:
                self._finder.ask(key, self._processes.paths(file))

    def _learn(self, answer: Answer) -> None:
        key = answer.key
        if answer.layout is not None and self._identities.get(key):
            self.libraries[self._identities[key]].layout = answer.layout
        if answer.functions is None and not answer.error and not answer.gone:
            return
        files = self._waiting.pop(key, [])
        if not files and self._identities.get(key):  # the functions were told before; only the layout failed
            return
        if answer.gone:
            self._retry(key, files, answer.gone)
        elif files and (answer.functions or any(word in os.path.basename(files[0].path).lower() for word in _NAMES)):
            self._add(key, files, answer)
        else:
            self._remember(key, "")

    def _retry(self, key: FileKey, files: list[MappedFile], why: str) -> None:
        """The file could not be opened through its first process: look through another one, if there is any."""
        rest = [file for file in files[1:] if self._processes.alive(file.process)]
        if rest:
            self._waiting[key] = rest
            self._finder.ask(key, self._processes.paths(rest[0]))
        elif files and self._processes.alive(files[0].process):
            self._remember(key, "")
            log.debug("%s cannot be opened: %s", files[0].path, why)

    def _remember(self, key: FileKey, name: str) -> None:
        if len(self._identities) >= _REMEMBERED:
            self._identities = {key: name for key, name in self._identities.items() if name}
        self._identities[key] = name

    def _add(self, key: FileKey, files: list[MappedFile], answer: Answer) -> None:
        name = answer.identity or f"{files[0].device} {files[0].inode}"
        self._remember(key, name)
        if name not in self.libraries:
            library = self.libraries[name] = Library(name, files[0].path)
            self._check(library, files[0], answer)
            if library.state == "on":
                self._attach(library, answer)
            log.info("%s: %s, %d probes %s", library.path, library.state, len(library.probes), library.reason)
        self.libraries[name].users.update(file.process for file in files)

    def _check(self, library: Library, file: MappedFile, answer: Answer) -> None:
        if answer.error:
            library.state, library.reason = "blocked", answer.error
        elif answer.inode != file.inode:
            library.state, library.reason = "blocked", "replaced on disk since, and the mapping itself cannot be opened"
        elif not answer.functions:
            library.state, library.reason = "blocked", "defines no public NCCL or CUDA function (stripped, or static)"
        elif len(self.libraries) > _LIBRARIES:
            library.state, library.reason = "blocked", f"more than {_LIBRARIES} libraries carry probes already"

    def _attach(self, library: Library, answer: Answer) -> None:
        """Through a descriptor, and only after a second look: its process may have put another file at that path."""
        try:
            library.file = os.open(answer.path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            self._detach(library, "its process ended while probes were being attached")
            return
        if identity(library.file) != answer.identity:
            self._detach(library, "its process put another file in its place")
            return
        places = {offset: name for name, offset in reversed((answer.functions or {}).items())}  # the first of aliases
        library.hot = {at: name for at, name in places.items() if name.startswith("nccl") and not name.startswith(LIFE)}
        self._put(library, places)

    def _put(self, library: Library, places: Mapping[int, str]) -> None:
        name = ""
        try:
            for offset, name in places.items():
                library.probes[offset] = attach(self._programs[name], f"/proc/self/fd/{library.file}", Point(offset))
        except OSError as error:
            library.state, library.reason = "blocked", f"{name}: {error.strerror}"

    def _turn(self, library: Library) -> None:
        """Take the probes off the functions that are called over and over, or put them on again."""
        library.quiet, library.reason = bool(library.wanted_quiet), library.wanted_quiet
        if library.quiet:
            detach([library.probes.pop(offset) for offset in library.hot])
        else:
            self._put(library, library.hot)
        log.info("%s: %d probes %s", library.path, len(library.probes), library.reason)

    def _detach(self, library: Library, why: str) -> None:
        detach(library.probes.values())
        library.probes.clear()
        if library.file >= 0:
            os.close(library.file)
            library.file = -1
        library.state, library.reason = "gone", why
        # Its number may be another file's by the time somebody maps it again: look afresh then.
        self._identities = {key: name for key, name in self._identities.items() if name != library.identity}
