"""Processes and the files they execute, from /proc. All that is read here is controlled by others: bounded, checked."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from agent.system.costs import Costs

_MAPS_BYTES = 16 << 20
_ENVIRONMENT_BYTES = 1 << 20
_CGROUP_BYTES = 1 << 16
FILES = 4096
"""Of one process. Files with names that promise probes are found beyond that, up to as many again."""
SCAN_S, LONGEST_S = 0.1, 0.4
"""Processor time, and time, for reading what processes map in one look; what is left over comes in the next."""
_CALM, _RARELY = 30, 8
"""Looks without a change after which a process is calm, and among how many looks it gets one then."""
_EXECUTABLE = re.compile(
    rb"^([0-9a-f]{1,16})-([0-9a-f]{1,16}) [r-][w-]x[sp] [0-9a-f]+ ([0-9a-f]+:[0-9a-f]+) ([1-9][0-9]*) +(.*)$",
    re.MULTILINE,
)
_LIKELY = re.compile(rb"nccl|cudart", re.IGNORECASE)
_USER = re.compile(rb"^Uid:\t([0-9]{1,10})\t", re.MULTILINE)
_STATUS_BYTES = 1 << 14


@dataclass(frozen=True, slots=True)
class Process:
    """One program run by one process: not a later process of that number, nor what it executes next."""

    pid: int
    start: int
    """Clock ticks since boot (proc(5), stat field 22)."""
    stack: int = 0
    """Where its stack begins (field 28): another place after each exec. 0 where we may not know."""


@dataclass(frozen=True, slots=True)
class MappedFile:
    """A file that a process maps executable."""

    process: Process
    device: str
    inode: int
    path: str
    """As the process's own mount namespace calls it; ' (deleted)' cut off."""
    addresses: str
    """Its address range, the name of a link under /proc/PID/map_files."""


def _read(path: str, limit: int) -> bytes:
    with open(path, "rb", buffering=0) as file:
        chunks, size = [], 0
        while size < limit and (chunk := file.read(min(1 << 16, limit - size))):
            chunks.append(chunk)
            size += len(chunk)
    return b"".join(chunks)


def _read_stat(path: str) -> bytes:
    """A file of one line, which the kernel hands over in one piece."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(file, 4096)
    finally:
        os.close(file)


def parse_maps(process: Process, text: bytes) -> list[MappedFile]:
    """The executable file mappings of /proc/PID/maps, each file once; a bounded number of them."""
    files: dict[tuple[bytes, bytes], MappedFile] = {}
    for match in _EXECUTABLE.finditer(text):
        low, high, device, inode, name = match.groups()
        most = 2 * FILES if _LIKELY.search(name) else FILES
        if len(files) < most and (device, inode) not in files and len(inode) < 20:
            path = os.fsdecode(name.removesuffix(b" (deleted)"))
            addresses = f"{int(low, 16):x}-{int(high, 16):x}"
            files[device, inode] = MappedFile(process, device.decode(), int(inode), path, addresses)
    return list(files.values())


def parse_stat(text: bytes) -> tuple[int, int, int]:
    """Start time in clock ticks, virtual size in bytes and beginning of the stack from /proc/PID/stat.

    Raises ValueError for a text of another form. The command may hold spaces and brackets of its own.
    """
    fields = text[text.rfind(b")") + 1 :].split()
    if len(fields) < 26:
        raise ValueError("/proc/PID/stat has too few fields")
    return int(fields[19]), int(fields[20]), int(fields[25])


class Processes:
    """The processes of this PID namespace, and which of them are worth another look."""

    def __init__(self, root: Path = Path("/proc")) -> None:
        self._root = str(root)
        self._seen: dict[int, tuple[int, int, int]] = {}  # by pid, its stat at the last look
        self._calm: dict[int, int] = {}  # by pid, looks since its stat changed
        self._due: dict[int, tuple[int, int, int]] = {}  # those that changed since
        self._users: dict[Process, int] = {}
        self._round = 0
        self._costs = Costs()
        self.crowded: set[Process] = set()
        """Those that map more files than are read."""

    def changed(self) -> Iterator[tuple[Process, list[MappedFile]]]:
        """Processes that are new or grew since the last call (a library may have come), with what they map.

        One that has not changed for many scans is read in every eighth only. Where there is more to read than
        fits into the time, the users that have caused the least work come first, and the rest is due in the next look.
        """
        self._survey()
        begin, deadline = time.thread_time(), time.monotonic() + LONGEST_S
        due = [Process(pid, start, stack) for pid, (start, _, stack) in self._due.items()]
        for process in sorted(due, key=lambda process: self._costs.rank((self.user(process), process.pid))):
            now = time.thread_time()
            if now - begin > SCAN_S or time.monotonic() > deadline:
                return
            seen = self._due.pop(process.pid)
            try:
                text = _read(f"{self._root}/{process.pid}/maps", _MAPS_BYTES)
            except OSError:
                continue  # it ended during the scan, or cannot be read: the next scan decides
            self._seen[process.pid], self._calm[process.pid] = seen, 0
            files = parse_maps(process, text)
            self._costs.add((self.user(process), process.pid), time.thread_time() - now)
            if len(files) >= FILES or len(text) >= _MAPS_BYTES:
                self.crowded.add(process)
            yield process, files

    def again(self, process: Process) -> None:
        """Have the next scan read it as if it had changed."""
        self._seen.pop(process.pid, None)
        self._calm.pop(process.pid, None)

    @property
    def behind(self) -> int:
        """Processes that are due and were left for the next scan."""
        return len(self._due)

    def _survey(self) -> None:
        """Find out which processes are due."""
        alive = set()
        self._round += 1
        for name in os.listdir(self._root):
            if not name.isdecimal():
                continue
            pid = int(name)
            calm = self._calm.get(pid, 0)
            if calm >= _CALM and (self._round + pid) % _RARELY:
                alive.add(pid)
                continue
            try:
                stat = parse_stat(_read_stat(f"{self._root}/{name}/stat"))
            except (OSError, ValueError):
                continue
            alive.add(pid)
            if not stat[1] or self._seen.get(pid) == stat:  # no memory of its own: a thread of the kernel
                self._calm[pid] = calm + 1
            else:
                self._due[pid] = stat
        for table in (self._seen, self._calm, self._due):
            for pid in table.keys() - alive:
                del table[pid]
        self._users = {process: user for process, user in self._users.items() if process.pid in alive}
        self.crowded = {process for process in self.crowded if process.pid in alive}

    def user(self, process: Process) -> int:
        """Its real user, whatever rights it has by now; its folder may be root's for that."""
        if process not in self._users:
            folder = f"{self._root}/{process.pid}"
            try:
                found = _USER.search(_read(f"{folder}/status", _STATUS_BYTES))
                self._users[process] = int(found[1]) if found else os.stat(folder).st_uid
            except OSError:
                return -1  # it has ended
        return self._users[process]

    def descriptors(self, pid: int) -> str:
        """The folder of its open files."""
        return f"{self._root}/{pid}/fd"

    def find(self, pid: int) -> Process | None:
        """The living process of that number; a zombie does not live, it has no memory left.

        Raises OSError where the process cannot be read, though it may well be alive.
        """
        try:
            start, size, stack = parse_stat(_read_stat(f"{self._root}/{pid}/stat"))
        except (FileNotFoundError, ProcessLookupError, ValueError):
            return None
        return Process(pid, start, stack) if size else None

    def alive(self, process: Process) -> bool:
        """Whether that very program still runs. Raises OSError where it cannot be read."""
        return self.find(process.pid) == process

    def files(self, process: Process) -> list[MappedFile]:
        """The files that a process maps executable. Raises OSError where it has ended or cannot be read."""
        return parse_maps(process, _read(f"{self._root}/{process.pid}/maps", _MAPS_BYTES))

    def program(self, process: Process) -> int:
        """The inode of the file that a process executes; 0 where it cannot be known."""
        try:
            return os.stat(f"{self._root}/{process.pid}/exe").st_ino
        except OSError:
            return 0

    def environment(self, pid: int) -> dict[str, str]:
        """The environment that the process was started with; empty where it cannot be read."""
        try:
            text = _read(f"{self._root}/{pid}/environ", _ENVIRONMENT_BYTES)
        except OSError:
            return {}
        pairs = (entry.partition("=") for entry in text.decode(errors="replace").split("\0"))
        return {name: value for name, equals, value in pairs if equals}

    def variables(self, pid: int, names: frozenset[str]) -> dict[str, str]:
        """Those variables of its environment."""
        return {name: value for name, value in self.environment(pid).items() if name in names}

    def cgroup(self, pid: int) -> str:
        """The text of its cgroup file (cgroups(7)); empty where it cannot be read."""
        try:
            return _read(f"{self._root}/{pid}/cgroup", _CGROUP_BYTES).decode(errors="replace")
        except OSError:
            return ""

    def paths(self, file: MappedFile) -> tuple[str, str]:
        """Where to open a mapped file: the mapping itself, then the path below the process's own root.

        The mapping reaches deleted and replaced files too, but asks for more rights.
        """
        folder = f"{self._root}/{file.process.pid}"
        return f"{folder}/map_files/{file.addresses}", f"{folder}/root/{file.path.lstrip('/')}"


def visible_gpus(environment: dict[str, str]) -> tuple[str, ...]:
    """What CUDA_VISIBLE_DEVICES lists: indices, or UUIDs; none where it is not set."""
    return tuple(part.strip() for part in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if part.strip())


def gpu_of(environment: dict[str, str]) -> str | None:
    """The index of the GPU that a launcher gave to this process (torchrun, Slurm, Open MPI); None: unknown.

    With several devices visible the local rank chooses among them, as training frameworks do.
    """
    visible = visible_gpus(environment)
    for key in ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID", "MPI_LOCALRANKID"):
        rank = environment.get(key, "")
        if is_index(rank):
            index = int(rank)
            place = 0 if len(visible) == 1 else index
            return visible[place] if place < len(visible) and is_index(visible[place]) else str(index)
    return visible[0] if len(visible) == 1 and is_index(visible[0]) else None


def is_index(word: str) -> bool:
    """Whether a word is the index of a GPU."""
    return word.isdecimal() and word.isascii() and len(word) < 4
