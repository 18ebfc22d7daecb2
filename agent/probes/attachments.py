"""Attaches probes to the libraries that training processes map, and detaches them when no process does."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Mapping
from itertools import islice

from agent.binaries.known_files import FileKey, KnownFiles
from agent.binaries.struct_layouts import Layout
from agent.binaries.symbol_lookup import LookupResult, SymbolLookup
from agent.probes.groups import ASKED, CUDA, SYNCHRONIZE, VARIANTS, group_of
from agent.probes.library import (
    ATTACHED,
    LISTED,
    LISTED_OF_PROCESS,
    LISTED_OF_USER,
    OF_PROCESS,
    OF_USER,
    Library,
    may_list,
    payer,
)
from agent.process.procfs import FILES, MappedFile, Process, Processes
from agent.system.costs import Owner
from agent.system.file_identity import content, identity
from agent.system.left_out import LeftOut
from bpf.uprobe import Point, attach, detach

log = logging.getLogger(__name__)

COUNTS_CALLS = "ncclAllReduceConfig"
"""Came with the version (2.31) in which `ncclComm.opCount` began to count calls, on every communicator."""
_NAMES = ("nccl", "cudart")
AGAIN_S = 300.0
"""Seconds after which a blocked library is tried again."""
_UNLISTED = f"{LISTED_OF_PROCESS} of a process, {LISTED_OF_USER} of a user, {LISTED} in all"
_FULL = f"others carry probes already: {OF_PROCESS} of its process, {OF_USER} of its user or {ATTACHED} in all"
_CROWDED = f"{FILES} executable files of a process"
_SHARERS = 16
"""Processes that are remembered to wait for the answer about one file; others look again."""


class Attachments:
    """The libraries that carry probes, and those that cannot, with the reason. Programs are descriptors by function."""

    def __init__(
        self,
        programs: Mapping[str, int],
        processes: Processes,
        groups: Iterable[str] = (),
        left_out: LeftOut | None = None,
    ) -> None:
        wanted_groups = set(groups)
        off = {name for group, names in ASKED.items() if CUDA[group] not in wanted_groups for name in names}
        self._processes = processes
        self._programs = {
            name + suffix: descriptor for name, descriptor in programs.items() if name not in off for suffix in VARIANTS
        }
        self._looks_for_waits = any(group_of(name) == SYNCHRONIZE for name in programs)
        self._finder = SymbolLookup(list(self._programs))
        self._left_out = left_out or LeftOut()
        self._known = KnownFiles()
        self._waiting: dict[FileKey, list[MappedFile]] = {}
        self._unlisted: set[Process] = set()
        self._retried_at = time.monotonic()
        self.libraries: dict[str, Library] = {}
        self.scans = 0

    def update(self) -> None:
        """One scan: new processes and mappings, answers about files, processes that are gone."""
        self.libraries = {key: library for key, library in self.libraries.items() if library.state != "gone"}
        for process, files in self._processes.changed():
            owner = self._owner(process)
            seen = [self._see(process, file, owner) for file in files]
            if not all(seen):
                self._processes.again(process)
            if process in self._processes.crowded:
                self._left_out.add("mapped files", _CROWDED)
        for answer in self._finder.poll():
            self._learn(answer)
        for library in self.libraries.values():
            self._check_again(library)
        waiting = self.carrying(SYNCHRONIZE)
        for library in self.libraries.values():
            library.waits_unseen = self._looks_for_waits and not library.users <= waiting
        self._retry_blocked()
        self.scans += 1

    def _check_again(self, library: Library) -> None:
        """Who maps it now, whether its file is as it was, and which groups of its functions shall carry probes."""
        library.users = {process for process in library.users if self._processes.alive(process)}
        if not library.users:
            self._detach(library, "no process maps it any more")
            return
        if library.overwritten:
            self._detach(library, "its file was overwritten in place")
            for process in library.users:
                self._processes.again(process)
            return
        if library.owner[1] not in {process.pid for process in library.users}:
            library.owner = self._owner(next(iter(library.users)))
        if library.suspend.keys() != library.suspended and library.state == "on":
            self._toggle(library)

    @property
    def busy(self) -> bool:
        """Whether answers about files are still to come."""
        return bool(self._waiting) or self._finder.busy or bool(self._processes.behind)

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

    def counts_calls(self, process: Process) -> bool:
        """Whether the NCCL that a process maps counts its calls (2.31 and later), and not its launches."""
        return any(library.counts_calls for library in tuple(self.libraries.values()) if process in library.users)

    def carrying(self, group: int) -> set[Process]:
        """The processes that map a library with functions of that group which carry probes, or are to at times."""
        libraries = tuple(self.libraries.values())
        return {user for one in libraries if one.state == "on" and group in one.functions for user in tuple(one.users)}

    def close(self) -> None:
        """Take every probe off."""
        self._finder.close()
        for library in self.libraries.values():
            self._detach(library, "the agent stops")

    def _owner(self, process: Process) -> Owner:
        return self._processes.user(process), process.pid

    def _see(self, process: Process, file: MappedFile, owner: Owner) -> bool:
        """Whether a mapped file is handled; else its process has to be read again."""
        key = (file.device, file.inode, os.path.basename(file.path))
        known, waiting = self._known.get(key), self._waiting.get(key)
        if known:
            self.libraries[known].users.add(process)
        elif known is None and waiting is None:
            if not self._finder.has_room(owner):
                return False
            self._waiting[key] = [file]
            self._finder.ask(key, self._processes.paths(file), owner)
        elif waiting is not None and process not in {one.process for one in waiting}:
            if len(waiting) >= _SHARERS:
                return False
            waiting.append(file)
        return True

    def _retry_blocked(self) -> None:
        """Forget blocked libraries where the reason may have gone, so that they are found again."""
        now = time.monotonic()
        due = now - self._retried_at >= AGAIN_S
        for library in [one for one in self.libraries.values() if one.state == "blocked"]:
            if now - library.since >= AGAIN_S or (library.crowded and self._payer(library)):
                del self.libraries[library.identity]
                self._known.evict(library.identity)
                for process in library.users:
                    self._processes.again(process)
        if due:
            self._retried_at = now
            for process in self._unlisted:
                self._processes.again(process)
            self._unlisted.clear()

    def _payer(self, library: Library) -> Owner | None:
        users = islice(library.users, _SHARERS)
        return payer(self.libraries.values(), (self._owner(process) for process in users))

    def _learn(self, answer: LookupResult) -> None:
        key = answer.key
        known = self._known.get(key)
        if answer.functions is None and known in self.libraries:
            self._learn_layout(self.libraries[known], answer)
        if answer.functions is None and not answer.error and not answer.gone:
            return
        files = self._waiting.pop(key, [])
        if not files and known:  # the functions are known already; only the layout failed
            return
        if answer.gone:
            self._retry(key, files, answer.gone)
        elif files and (answer.functions or any(word in os.path.basename(files[0].path).lower() for word in _NAMES)):
            self._add(key, files, answer)
        else:
            self._known.put(key, "", self._user(files))

    def _learn_layout(self, library: Library, answer: LookupResult) -> None:
        library.layout, library.sought = answer.layout or library.layout, False
        if library.unread:
            log.info("%s: %s", library.path, library.words)

    def _user(self, files: list[MappedFile]) -> int:
        return self._processes.user(files[0].process) if files else -1

    def _retry(self, key: FileKey, files: list[MappedFile], why: str) -> None:
        """The file could not be opened through its first process: look through another one, if there is any."""
        rest = [file for file in files[1:] if self._processes.alive(file.process)]
        if rest:
            self._waiting[key] = rest
            self._finder.ask(key, self._processes.paths(rest[0]), self._owner(rest[0].process))
        elif files and self._processes.alive(files[0].process):
            self._known.put(key, "", self._user(files))
            log.debug("%s cannot be opened: %s", files[0].path, why)

    def _add(self, key: FileKey, files: list[MappedFile], answer: LookupResult) -> None:
        name = answer.identity or f"{files[0].device} {files[0].inode}"
        users = [file.process for file in files]
        self._known.put(key, name, self._user(files))
        if name not in self.libraries:
            library = Library(name, files[0].path, owner=self._owner(users[0]), users=set(users))
            self._check(library, files[0], answer)
            if library.state == "on":
                self._attach(library, answer)
            if library.state == "blocked" and not may_list(self.libraries.values(), library.owner):
                self._left_out.add("blocked libraries", _UNLISTED)
                self._known.evict(name)
                self._unlisted.update(users)
                return
            self.libraries[name] = library
            log.info("%s: %s, %d probes %s", library.path, library.state, len(library.probes), library.words)
        self.libraries[name].users.update(users)

    def _check(self, library: Library, file: MappedFile, answer: LookupResult) -> None:
        if answer.error:
            library.state, library.reason = "blocked", answer.error
        elif answer.inode != file.inode:
            library.state, library.reason = "blocked", "replaced on disk since, and the mapping itself cannot be opened"
        elif not answer.functions:
            library.state, library.reason = "blocked", "defines no public NCCL or CUDA function (stripped, or static)"
        elif (owner := self._payer(library)) is None:
            library.state, library.crowded = "blocked", True
            library.reason = _FULL
        else:
            library.owner = owner

    def _attach(self, library: Library, answer: LookupResult) -> None:
        """Through a descriptor, and only after a second look: its process may have put another file at that path."""
        try:
            library.file = os.open(answer.path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            self._detach(library, "its process ended while probes were being attached")
            return
        library.content = content(library.file)
        if identity(library.file) != answer.identity:
            self._detach(library, "its process put another file in its place")
            return
        places = {offset: name for name, offset in reversed((answer.functions or {}).items())}  # the first of aliases
        library.counts_calls = COUNTS_CALLS in (answer.functions or {})
        library.sought = True
        for at, function in places.items():
            library.functions.setdefault(group_of(function), {})[at] = function
        library.stepped = frozenset(group_of(places[at]) for at in answer.stepped if at in places)
        self._put(library, places)

    def _put(self, library: Library, places: Mapping[int, str]) -> None:
        name = ""
        try:
            for offset, name in places.items():
                library.probes[offset] = attach(self._programs[name], f"/proc/self/fd/{library.file}", Point(offset))
        except OSError as error:
            library.state, library.reason = "blocked", f"{name}: {error.strerror}"

    def _toggle(self, library: Library) -> None:
        """Take the probes off the groups that shall carry none, and put them on the others again."""
        wanted = frozenset(library.suspend)
        off = [offset for group in wanted - library.suspended for offset in library.functions[group]]
        on = library.suspended - wanted
        library.suspended = wanted
        detach([library.probes.pop(offset) for offset in off])
        for group in on:
            self._put(library, library.functions[group])
        log.info("%s: %d probes %s", library.path, len(library.probes), library.words)

    def _detach(self, library: Library, why: str) -> None:
        detach(library.probes.values())
        library.probes.clear()
        if library.file >= 0:
            os.close(library.file)
            library.file = -1
        library.state, library.reason = "gone", why
        # Its number may be another file's by the time a process maps it again: it is read again then.
        self._known.evict(library.identity)
