"""Where the running kernel keeps its fields: the types that it tells of itself (Documentation/bpf/btf.rst)."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from pathlib import Path

VMLINUX = Path("/sys/kernel/btf/vmlinux")
_MAGIC = 0xEB9F
_HEADER = struct.Struct("<HBBIIIII")
_STRUCT, _UNION, _TYPEDEF = 4, 5, 8
# Words behind the three that begin every type: how many, and how many for each of its members.
_TAIL = {
    **dict.fromkeys((2, 7, 8, 9, 10, 11, 12, 16, 18), (0, 0)),
    **dict.fromkeys((1, 14, 17), (1, 0)),
    **dict.fromkeys((4, 5, 15, 19), (0, 3)),
    **dict.fromkeys((6, 13), (0, 2)),
    3: (3, 0),
}
_WANTED = re.compile(rb"\b(OFFSET|BIT|SIZE|ARGUMENTS|TYPE)_([A-Za-z0-9]\w*?)(?:__(\w+))?\b")
_OF_TRACEPOINTS = (b"ARGUMENTS", b"TYPE")


class Types:
    """The types of one blob. Raises ValueError where it is not one, or is cut off."""

    def __init__(self, blob: bytes) -> None:
        if len(blob) < _HEADER.size:
            raise ValueError("BTF: too short for a header")
        magic, _, _, header, types, types_length, strings, strings_length = _HEADER.unpack_from(blob)
        if magic != _MAGIC:
            raise ValueError("BTF: it does not begin with the magic number")
        self._strings = blob[header + strings : header + strings + strings_length]
        part = blob[header + types : header + types + types_length]
        if len(part) != types_length or types_length % 4 or len(self._strings) != strings_length:
            raise ValueError("BTF: its parts reach beyond its end")
        self._words = memoryview(part).cast("I")
        self._places = self._walk()

    def _walk(self) -> list[int]:
        """Where each type begins; types are numbered from 1."""
        words, places, at = self._words, [0], 0
        while at < len(words):
            info = words[at + 1] if at + 2 < len(words) else 0
            tail = _TAIL.get(info >> 24 & 31)
            if tail is None:
                raise ValueError(f"BTF: type {len(places)} is of a kind that is not known, or cut off")
            places.append(at)
            at += 3 + tail[0] + tail[1] * (info & 0xFFFF)
        if at != len(words):
            raise ValueError("BTF: the last type is cut off")
        return places

    def _name(self, offset: int) -> bytes:
        return self._strings[offset : self._strings.find(b"\0", offset)]

    def find(self, kind: int, names: Iterable[bytes]) -> dict[bytes, int]:
        """Numbers of the first types of that kind with those names."""
        words, wanted, found = self._words, set(names), dict[bytes, int]()
        for number, at in enumerate(self._places[1:], 1):
            if words[at + 1] >> 24 & 31 == kind:
                name = self._name(words[at])
                if name in wanted:
                    found.setdefault(name, number)
        return found

    def size(self, number: int) -> int:
        """Bytes of a structure."""
        return self._words[self._places[number] + 2]

    def bit_of(self, number: int, member: bytes, depth: int = 8) -> int | None:
        """Bits from a structure's beginning to a member, members without a name searched too; None: it has none."""
        if not 0 < number < len(self._places) or not depth:
            return None
        words, at = self._words, self._places[number]
        if words[at + 1] >> 24 & 31 not in (_STRUCT, _UNION):
            return None
        for place in range(at + 3, at + 3 + 3 * (words[at + 1] & 0xFFFF), 3):
            offset = words[place + 2] & 0xFFFFFF if words[at + 1] >> 31 else words[place + 2]
            if self._name(words[place]) == member:
                return offset
            inner = None if words[place] else self.bit_of(words[place + 1], member, depth - 1)
            if inner is not None:
                return offset + inner
        return None

    def arguments(self, number: int) -> int | None:
        """How many arguments a tracepoint's programs get: its typedef points to a function with one more."""
        for _ in range(2):
            if not 0 < number < len(self._places):
                return None
            number = self._words[self._places[number] + 2]
        if not 0 < number < len(self._places):
            return None
        info = self._words[self._places[number] + 1]
        return max((info & 0xFFFF) - 1, 0) if info >> 24 & 31 == 13 else None


def definitions(text: bytes, blob: bytes) -> dict[str, int]:
    """Values of the words in a program's text that ask for the kernel's own layout; those it has no answer to lack.

    `OFFSET_<structure>__<member>` and `SIZE_<structure>` are in bytes, `BIT_<structure>__<member>` in bits,
    `ARGUMENTS_<tracepoint>` a number, `TYPE_<tracepoint>` the number by which programs are loaded for it. Raises
    ValueError on a broken blob.
    """
    wanted = set(_WANTED.findall(text))
    types = Types(blob)
    points = types.find(_TYPEDEF, {b"btf_trace_" + owner for what, owner, _ in wanted if what in _OF_TRACEPOINTS})
    structures = types.find(_STRUCT, {owner for what, owner, _ in wanted if what not in _OF_TRACEPOINTS})
    values: dict[str, int | None] = {}
    for what, owner, member in wanted:
        word = (what + b"_" + owner + (b"__" + member if member else b"")).decode()
        if what in _OF_TRACEPOINTS:
            number = points.get(b"btf_trace_" + owner)
            values[word] = number if what == b"TYPE" or number is None else types.arguments(number)
        elif owner in structures:
            values[word] = _place(types, structures[owner], what, member)
    return {word: value for word, value in values.items() if value is not None}


def _place(types: Types, structure: int, what: bytes, member: bytes) -> int | None:
    if what == b"SIZE":
        return types.size(structure)
    bits = types.bit_of(structure, member)
    return bits if what == b"BIT" or bits is None else bits // 8
