"""The state of a process's threads, from /proc: which thread sleeps in which system call. Nothing is stopped."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from bpf.processor import OURS

_STATES = {"R": "runs", "S": "sleeps", "D": "sleeps and cannot be woken", "T": "is stopped", "t": "is stopped"}
_CALLS = dict(re.findall(r"(\d+) (\w+)", OURS.waits))
"""Calls that one waits in, by their numbers."""
TEXT_BYTES = 8000
"""Of several threads together."""
_THREADS, _BYTES, _DEEP = 256, 4096, 16
_FRAME = re.compile(r"^\[<[0-9a-f]+>\] ([^\s+]{1,80})", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Thread:
    """One thread, as /proc/PID/task/TID shows it."""

    name: str
    waits_in: str
    """Such as `sleeps in futex (futex_do_wait)`."""
    frames: tuple[str, ...]
    """Functions of the kernel, innermost first; none where that is not ours to read."""


def plain(text: str, limit: int) -> str:
    """One line of printable characters: the watched process chooses the names."""
    return "".join(sign if sign.isprintable() else "?" for sign in text[:limit])


def read_thread(folder: Path) -> Thread:
    """The thread of that folder. Raises OSError where it has ended, or is not ours to read."""
    stat = _read(folder / "stat")
    name, rest = stat[stat.find("(") + 1 : stat.rfind(")")], stat[stat.rfind(")") + 1 :].split()
    frames = tuple(_FRAME.findall(_optional(folder / "stack")))[:_DEEP]
    where = describe(rest[0] if rest else "", _optional(folder / "syscall"), _optional(folder / "wchan"))
    return Thread(plain(name, 32), where, frames)


def describe(state: str, call: str, place: str) -> str:
    """A thread's wait in words, from its state, its line of `syscall` and its `wchan`."""
    words = _STATES.get(state, f"is in state {plain(state, 1)}" if state else "is in an unknown state")
    number = call.split(" ", 1)[0]
    if number.isdecimal():
        words += f" in {_CALLS.get(number, f'system call {number[:4]}')}"
    return words + (f" ({plain(place, 60)})" if place.strip("0\n") else "")


def read_threads(process: Path) -> list[Thread]:
    """The threads of a process, its first one first. Raises OSError where that one cannot be read."""
    first = read_thread(process / "task" / process.name)
    others = []
    for name in sorted(os.listdir(process / "task"), key=int)[:_THREADS]:
        if name != process.name:
            try:
                others.append(read_thread(process / "task" / name))
            except OSError:
                continue  # it has ended since
    return [first, *others]


def together(blocks: Iterable[tuple[str, str]], limit: int = TEXT_BYTES) -> str:
    """Threads by name and what they are at, those alike as one block, in order of their names; cut at the limit."""
    alike: dict[str, list[str]] = {}
    for name, what in sorted(blocks):
        alike.setdefault(what, []).append(name)
    said = [f"{names[0]}{f' and {len(names) - 1} more' * (len(names) > 1)}\n{what}" for what, names in alike.items()]
    return "\n\n".join(said)[:limit]


def _read(path: Path) -> str:
    with open(path, "rb", buffering=0) as file:
        return (file.read(_BYTES) or b"").decode(errors="replace").strip()


def _optional(path: Path) -> str:
    """A file that only root may read, or that this kernel does not have; empty then."""
    try:
        return _read(path)
    except OSError:
        return ""
