"""An emulated machine's own view of memory, pressure and disks: the computer's, and what a fault adds to it.

Copies of files of /proc are mounted over them in the machine's mount namespace, so that whoever reads them there, by
whatever library, sees what is written here.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from emulator.shared.errors import CallError

MS_BIND = 4096
MNT_DETACH = 2
NAMES = ("meminfo", "pressure/memory", "pressure/io", "diskstats")
PAGE = 1 << 16


@dataclass(frozen=True, slots=True)
class Strain:
    """What a fault adds, as shares: of memory in use, of time waiting for memory and I/O, of time the disk works."""

    memory: float = 0.0
    memory_waits: float = 0.0
    io_waits: float = 0.0
    disk: float = 0.0


@dataclass(slots=True)
class Extra:
    """What the strain has come to so far: microseconds of waiting, milliseconds of a busy disk."""

    memory_us: float = 0.0
    io_us: float = 0.0
    disk_ms: float = 0.0

    def grow(self, strain: Strain, seconds: float) -> None:
        """Strain for a while."""
        self.memory_us += strain.memory_waits * seconds * 1e6
        self.io_us += strain.io_waits * seconds * 1e6
        self.disk_ms += strain.disk * seconds * 1e3


def strained_memory(text: bytes, share: float) -> bytes:
    """/proc/meminfo with this share of all memory taken from what is free and available; numbers keep their width."""
    lines = text.splitlines()
    taken = int(share * next((int(line.split()[1]) for line in lines if line.startswith(b"MemTotal:")), 0))
    for at, line in enumerate(lines):
        if line.startswith((b"MemFree:", b"MemAvailable:")):
            name, kilobytes, _ = line.split()
            lines[at] = b"%-16s%8d kB" % (name, max(int(kilobytes) - taken, 1 << 10))
    return b"\n".join(lines) + b"\n"


def strained_pressure(text: bytes, microseconds: float) -> bytes:
    """A file of /proc/pressure with this much more waiting of some threads in its total, and half of it of all."""
    lines = []
    for line in text.splitlines():
        head, _, total = line.rpartition(b"total=")
        more = microseconds if line.startswith(b"some") else microseconds / 2
        lines.append(b"%stotal=%d" % (head, int(total) + int(more)))
    return b"\n".join(lines) + b"\n"


def strained_disks(text: bytes, milliseconds: float) -> bytes:
    """/proc/diskstats with the most used disk busy for so much longer (columns 13 and 14: busy, weighted)."""
    lines = [line.split() for line in text.splitlines()]
    if not lines:
        return text
    used = max(lines, key=lambda words: int(words[3]) + int(words[7]))
    used[12] = b"%d" % (int(used[12]) + int(milliseconds))
    used[13] = b"%d" % (int(used[13]) + 3 * int(milliseconds))
    return b"".join(b"%4s %7s %s\n" % (words[0], words[1], b" ".join(words[2:])) for words in lines)


class HostState:
    """The mounted copies; those that this kernel has no original of are left out. Raises CallError."""

    def __init__(self, folder: Path, proc: Path = Path("/proc")) -> None:
        self.extra = Extra()
        self._folder = folder
        self._originals: dict[str, int] = {}
        self._copies: dict[str, int] = {}
        self._lengths: dict[str, int] = {}
        self._mounted: list[Path] = []
        folder.mkdir(exist_ok=True)
        for name in NAMES:
            if (proc / name).exists():
                self._cover(name, proc / name)

    def _cover(self, name: str, original: Path) -> None:
        # A descriptor that was opened before the mount goes on reading the original.
        self._originals[name] = os.open(original, os.O_RDONLY | os.O_CLOEXEC)
        copy = self._folder / name.replace("/", "_")
        self._copies[name] = os.open(copy, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._write(name, os.pread(self._originals[name], PAGE, 0))
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mount(os.fsencode(copy), os.fsencode(original), None, MS_BIND, None):
            raise CallError(f"can't mount a copy over {original}: {os.strerror(ctypes.get_errno())}")
        self._mounted.append(original)

    def update(self, strain: Strain, seconds: float) -> None:
        """Take over the originals' numbers, `seconds` after the last time."""
        self.extra.grow(strain, seconds)
        for name, original in self._originals.items():
            text = os.pread(original, PAGE, 0)
            if name == "meminfo":
                text = strained_memory(text, strain.memory)
            elif name == "diskstats":
                text = strained_disks(text, self.extra.disk_ms)
            else:
                text = strained_pressure(text, self.extra.memory_us if name.endswith("memory") else self.extra.io_us)
            self._write(name, text)

    def _write(self, name: str, text: bytes) -> None:
        """In one call: who reads meanwhile gets the old or the new; what was longer before is cut off afterwards."""
        os.pwrite(self._copies[name], text, 0)
        if len(text) < self._lengths.get(name, 0):
            os.ftruncate(self._copies[name], len(text))
        self._lengths[name] = len(text)

    def close(self) -> None:
        """Uncover the originals and remove the copies."""
        libc = ctypes.CDLL(None)
        for path in self._mounted:
            libc.umount2(os.fsencode(path), MNT_DETACH)
        for descriptor in (*self._originals.values(), *self._copies.values()):
            os.close(descriptor)
        for name in self._copies:
            with suppress(FileNotFoundError):
                (self._folder / name.replace("/", "_")).unlink()
        self._mounted.clear()
        self._originals.clear()
        self._copies.clear()
        self._folder.rmdir()
