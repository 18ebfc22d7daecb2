"""Layouts of NCCL's structures: shipped with the agent, or cached on disk by an earlier lookup.

A cached layout is used only where it is plausible.
"""

from __future__ import annotations

import contextlib
import json
from functools import cache
from pathlib import Path
from typing import Any

from agent.system import disk_cache

Layout = dict[str, dict[str, int]]
"""Byte offsets of structure members by structure and member name; `sizeof` is the structure's size."""

STRUCTURES: dict[str, tuple[str, ...]] = {
    "ncclComm": ("rank", "nRanks", "commHash", "cudaDev", "opCount", "proxyState"),
    "ncclProxyState": ("progressState",),
    "ncclProxyProgressState": ("active",),
    "ncclProxyArgs": ("subs", "nsubs", "state", "next"),
    "ncclProxyConnection": ("send",),
    "ncclProxySubArgs": ("connection", "peer", "nsteps", "base", "posted", "received", "transmitted", "done"),
}
"""What has to be known before anything is read."""
OPTIONAL: dict[str, tuple[str, ...]] = {
    "ncclComm": (
        "startMagic",
        "endMagic",
        "busId",
        "node",
        "nNodes",
        "localRank",
        "collOpCount",
        "seqNumber",
        "asyncResult",
        "abortFlag",
        "workFifoProduced",
        "workFifoConsumed",
    ),
    "ncclProxyArgs": ("opCount", "protocol"),
    "ncclProxyConnection": ("transport", "transportResources"),
    "sendNetResources": ("recvMem", "netDev"),
    "recvNetResources": ("netDev",),
    "ncclProxySubArgs": ("channelId", "nbytes"),
    "ncclProxyOp": ("peer",),  # only where it is there does ncclProxySubArgs.peer name the peer, and not a root
}
"""What some versions lack."""
STRUCTURE_BYTES = 8 << 20
TABLE = Path(__file__).with_name("layouts.json")
"""By build id of libraries in NVIDIA's wheels; made by `python -m agent.binaries.elf_worker LIBRARY...`."""
_MOST_FILES = 64
_FILE_BYTES = 1 << 16
_ADDRESS_BYTES = 8


def wanted_of(name: str) -> tuple[str, ...]:
    """The wanted members of a structure; none where the structure is not wanted."""
    return STRUCTURES.get(name, ()) + OPTIONAL.get(name, ())


def is_plausible(name: str, members: dict[str, int]) -> bool:
    """The needed members are there, each lies within its structure, and that has a size that NCCL's could have."""
    size = members.get("sizeof", 0)
    inside = all(0 <= at <= size - _ADDRESS_BYTES for member, at in members.items() if member != "sizeof")
    return 8 <= size <= STRUCTURE_BYTES and inside and members.keys() >= set(STRUCTURES.get(name, ()))


def is_whole(layout: Layout) -> bool:
    """Every structure that has to be known is."""
    return STRUCTURES.keys() <= layout.keys()


def checked(found: Any) -> Layout | None:
    """A layout that came from a file, where it is one in every respect."""
    if not isinstance(found, dict) or not is_whole(found):
        return None
    for name, members in found.items():
        wanted = wanted_of(name)
        known = wanted and isinstance(members, dict) and members.keys() <= {"sizeof", *wanted}
        if not known or not all(type(at) is int for at in members.values()) or not is_plausible(name, members):
            return None
    return found


@cache
def _shipped() -> dict[str, dict[str, Any]]:
    table: dict[str, dict[str, Any]] = json.loads(TABLE.read_text()) if TABLE.exists() else {}
    return table


def shipped(build_id: str) -> Layout | None:
    """The layout of a library that was known when this agent was made."""
    known = _shipped().get(build_id)
    return checked(known["layout"]) if known else None


class LayoutCache:
    """Layouts that earlier looks found."""

    def __init__(self, folder: Path | None = None) -> None:
        self._files = disk_cache.DiskCache("layouts", _FILE_BYTES, _MOST_FILES, folder)

    def find(self, key: str) -> Layout | None:
        """The layout cached under that name; None where there is none, or none that is plausible."""
        data = self._files.find(_name(key))
        with contextlib.suppress(ValueError, RecursionError):
            return checked(json.loads(data)) if data else None
        return None

    def keep(self, key: str, layout: Layout) -> None:
        """Cache it for the next start, where the disk allows."""
        self._files.keep(_name(key), json.dumps(layout).encode())


def _name(key: str) -> str:
    """The wanted members are part of the name: an agent that wants more finds nothing cached."""
    return f"{key}\0{json.dumps([STRUCTURES, OPTIONAL])}"
