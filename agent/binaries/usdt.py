"""Trace points that a program was built with: the notes that say where they are (SystemTap's sys/sdt.h, version 3)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

NOTES = ".note.stapsdt"
BASE = ".stapsdt.base"
_HEADER = struct.Struct("<III")
_PLACES = struct.Struct("<QQQ")
_KIND = 3
_OWNER = b"stapsdt\0"
NOTES_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class TracePoint:
    """One place of one trace point; addresses are as the linker saw them while `base` was that of BASE."""

    name: str
    """Provider and name, joined by a colon."""
    location: int
    base: int
    semaphore: int
    """Address of its 16-bit counter of watchers; 0: none, it is always on."""


def parse_notes(data: bytes) -> Iterator[TracePoint]:
    """The trace points of a note section; what is cut off or of another kind is passed over."""
    at = 0
    while at + _HEADER.size <= len(data):
        owner_size, size, kind = _HEADER.unpack_from(data, at)
        begin = at + _HEADER.size + _aligned(owner_size)
        owner, content = data[at + _HEADER.size :][:owner_size], data[begin : begin + size]
        at = begin + _aligned(size)
        if owner != _OWNER or kind != _KIND or len(content) != size or size < _PLACES.size:
            continue
        words = content[_PLACES.size :].split(b"\0")
        if len(words) > 2 and words[0].isascii() and words[1].isascii():
            yield TracePoint(f"{words[0].decode()}:{words[1].decode()}", *_PLACES.unpack_from(content))


def _aligned(size: int) -> int:
    return size + 3 & ~3
