"""How NCCL lays out its structures, as known before: shipped with the agent, or kept on disk from an earlier look.

What is kept is believed only in a folder and from a file that nobody else can write, and only where it is plausible.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

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
        "asyncResult",
        "abortFlag",
        "workFifoProduced",
        "workFifoConsumed",
    ),
    "ncclProxyArgs": ("opCount",),
    "ncclProxySubArgs": ("channelId", "nbytes"),
    "ncclProxyOp": ("peer",),  # only where it is there does ncclProxySubArgs.peer name the peer, and not a root
}
"""What some versions lack."""
STRUCTURE_BYTES = 8 << 20
TABLE = Path(__file__).with_suffix(".json")
"""By build id of libraries in NVIDIA's wheels; made by `python -m agent.elf LIBRARY...`."""
_KEPT = 64
_FILE_BYTES = 1 << 16
_ADDRESS_BYTES = 8


def wanted_of(name: str) -> tuple[str, ...]:
    """The members of a structure that are looked for; none where the structure is not."""
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


class Kept:
    """Layouts on disk, one file each: $XDG_CACHE_HOME/peerwatch/layouts, by default in ~/.cache."""

    def __init__(self, folder: Path | None = None) -> None:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        self._folder = folder or home / "peerwatch" / "layouts"

    def find(self, key: str) -> Layout | None:
        """What was kept under that name; None where there is nothing, or nothing to be believed."""
        with contextlib.suppress(OSError, ValueError, RecursionError), self._open() as folder:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            with os.fdopen(os.open(_name(key), flags, dir_fd=folder), "rb") as file:
                status = os.fstat(file.fileno())
                if stat.S_ISREG(status.st_mode) and _is_ours(status) and status.st_size <= _FILE_BYTES:
                    return checked(json.loads(file.read(_FILE_BYTES)))
        return None

    def keep(self, key: str, layout: Layout) -> None:
        """Keep it for the next start; where it cannot be kept the next start has to look again."""
        with contextlib.suppress(OSError):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._open() as folder:
                fresh = f".{os.getpid()}"
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                with os.fdopen(os.open(fresh, flags, 0o600, dir_fd=folder), "w") as file:
                    json.dump(layout, file)
                os.rename(fresh, _name(key), src_dir_fd=folder, dst_dir_fd=folder)
                self._forget_the_oldest(folder)

    @contextlib.contextmanager
    def _open(self) -> Iterator[int]:
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if not _is_ours(os.fstat(folder)):
                raise PermissionError(f"others can write to {self._folder}")
            yield folder
        finally:
            os.close(folder)

    def _forget_the_oldest(self, folder: int) -> None:
        names = os.listdir(folder)
        if len(names) > _KEPT:
            ages = {name: os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime_ns for name in names}
            for name in sorted(names, key=lambda name: ages[name])[: len(names) - _KEPT]:
                os.unlink(name, dir_fd=folder)


def _is_ours(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _name(key: str) -> str:
    """What is looked for is part of the name: an agent that wants more looks again."""
    wanted = json.dumps([STRUCTURES, OPTIONAL])
    return hashlib.blake2b(f"{key}\0{wanted}".encode(), digest_size=16).hexdigest() + ".json"
