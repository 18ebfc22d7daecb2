"""A library that carries probes or cannot, and the share of libraries that one user and one process may have."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from agent.binaries.struct_layouts import Layout
from agent.probes.groups import CALLS
from agent.process.procfs import Process
from agent.system.costs import Owner
from agent.system.file_identity import Content, content

ATTACHED, OF_USER, OF_PROCESS = 256, 64, 16
"""Libraries that may carry probes: of all, found through processes of one user, and through one process."""
LISTED, LISTED_OF_USER, LISTED_OF_PROCESS = 256, 32, 8
"""Those that are listed as blocked; more of them are only counted."""


@dataclass
class Library:
    """One file on disk (or deleted from it) and the probes on it."""

    identity: str
    path: str
    """As a process that maps it calls it."""
    state: str = "on"
    """on, blocked, or gone (no process maps it any more)."""
    reason: str = ""
    crowded: bool = False
    """It is blocked only because others carry probes."""
    owner: Owner = (0, 0)
    """The process and user that it counts against: among those with probes, or among those listed."""
    since: float = field(default_factory=time.monotonic)
    layout: Layout | None = None
    sought: bool = False
    """Its layout is being looked for."""
    counts_calls: bool = False
    """Its own count of operations is one of calls."""
    waits_unseen: bool = False
    """Some process that maps it calls no CUDA runtime that carries probes."""
    probes: dict[int, int] = field(default_factory=dict)
    """Descriptors by file offset."""
    users: set[Process] = field(default_factory=set)
    functions: dict[int, dict[int, str]] = field(default_factory=dict)
    """By group (agent/probes/groups.py) and file offset, the functions that can carry probes."""
    stepped: frozenset[int] = frozenset()
    """Groups with a function on which a hit costs more."""
    suspend: dict[int, str] = field(default_factory=dict)
    """The groups that shall carry no probes, and why."""
    suspended: frozenset[int] = frozenset()
    """The groups that carry none now."""
    remark: str = ""
    """Why probes stay that cost more than they should."""
    file: int = -1
    """Descriptor by which probes are put on."""
    content: Content | None = None
    """Of the file, when its functions were looked up."""

    @property
    def unread(self) -> tuple[str, ...]:
        """What cannot be read of NCCL in this version, in words."""
        if CALLS not in self.functions or self.state != "on":
            return ()
        gaps = list(self._unread_of_memory(self.layout))
        if self.waits_unseen:
            gaps.append(
                "no waits of the host: a program calls CUDA's driver, or a runtime that is linked in and stripped"
            )
        return tuple(gaps)

    def _unread_of_memory(self, layout: Layout | None) -> Iterator[str]:
        if self.sought:
            return
        if layout is None:
            yield "its structures are not known: no transfers, no ranks of split communicators, no earlier counts"
            return
        if not self.counts_calls and "seqNumber" not in layout["ncclComm"]:
            yield "before 2.24 nothing counts calls: communicators older than the probes count from there"
        if "peer" not in layout.get("ncclProxyOp", ()):
            yield "the rank that a transfer waits for is not read"

    @property
    def overwritten(self) -> bool:
        """Whether the file that carries probes has another content by now: offsets in it would be wrong."""
        return self.file >= 0 and content(self.file) != self.content

    def pause(self, group: int, why: str) -> None:
        """Have a group carry no probes from the next scan on. Another thread may read it: a new mapping each time."""
        self.suspend = self.suspend | {group: why}

    def resume(self, group: int) -> None:
        """Have a group carry probes again from the next scan on."""
        self.suspend = {other: why for other, why in self.suspend.items() if other != group}

    @property
    def words(self) -> str:
        """Why it is blocked or gone, or what it carries no probes on and what cannot be read of it."""
        return "; ".join(filter(None, (self.reason, *self.suspend.values(), self.remark, *self.unread)))

    @property
    def name(self) -> str:
        """The file's name alone."""
        return os.path.basename(self.path)


def payer(libraries: Iterable[Library], owners: Iterable[Owner]) -> Owner | None:
    """The first of these owners with room for another library that carries probes."""
    on = Counter(library.owner for library in libraries if library.state == "on")
    if on.total() >= ATTACHED:
        return None
    of_user = Counter[int]()
    for (user, _), count in on.items():
        of_user[user] += count
    return next((one for one in owners if of_user[one[0]] < OF_USER and on[one] < OF_PROCESS), None)


def may_list(libraries: Iterable[Library], owner: Owner) -> bool:
    """Whether another library that is blocked may be listed at the expense of that process."""
    listed = [library.owner for library in libraries if library.state == "blocked"]
    of_user = sum(user == owner[0] for user, _ in listed)
    return len(listed) < LISTED and of_user < LISTED_OF_USER and listed.count(owner) < LISTED_OF_PROCESS
