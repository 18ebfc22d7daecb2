"""A library mapped into memory: its section headers and symbol tables, searched in place (elf(5)).

Of the hundreds of files that a training process maps, all but a few define nothing that is wanted. A parser that makes
an object of each of their sections would be most of the work, so it comes in only where a symbol was found.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from functools import cached_property
from typing import Any, BinaryIO

import numpy as np
from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

SECTION = np.dtype(
    {
        "names": ["name", "type", "offset", "size", "link"],
        "formats": ["<u4", "<u4", "<u8", "<u8", "<u4"],
        "offsets": [0, 4, 24, 32, 40],
        "itemsize": 64,
    }
)
"""What is needed of Elf64_Shdr."""
SYMBOL = np.dtype(
    [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"), ("size", "<u8")]
)
"""Elf64_Sym."""
VARIABLE, FUNCTION = 1, 2
"""STT_OBJECT, STT_FUNC."""
STATIC, DYNAMIC = 2, 11
"""SHT_SYMTAB, SHT_DYNSYM: all symbols, which `strip` takes away, and those that other files may link to."""
_IDENTITY = b"\x7fELF\x02\x01"  # 64 bits, least byte first
_HEADER = struct.Struct("<40xQ10xHH2x")  # e_shoff, e_shentsize, e_shnum of Elf64_Ehdr
_START = 4
"""Characters by which the beginnings of names are searched before the names: `nccl`, `cuda`, `_PyG`."""


class MappedElf:
    """One file of 64 bits, of at least 64 bytes."""

    def __init__(self, file: BinaryIO, data: mmap.mmap) -> None:
        self.data, self._file = data, file

    @staticmethod
    def fits(data: mmap.mmap) -> bool:
        """Whether this is such a file."""
        return data[: len(_IDENTITY)] == _IDENTITY

    @cached_property
    def parsed(self) -> Any:
        """The file as pyelftools reads it. Raises what that raises."""
        return ELFFile(self._file)

    @cached_property
    def sections(self) -> np.ndarray:
        """SECTION of each section. Raises ELFError."""
        begin, size, count = _HEADER.unpack_from(self.data)
        if not begin:
            return np.empty(0, SECTION)
        if size != SECTION.itemsize:
            raise ELFError(f"section headers of {size} bytes")
        if not count:  # 65,280 or more: the first header tells
            count = int(self._headers(begin, 1)["size"][0])
        return self._headers(begin, count)

    def tables(self, wanted: list[str], kind: int, types: tuple[int, ...]) -> Iterator[tuple[list[str], SymbolTable]]:
        """The symbol tables that may name one of the wanted, and which of them. Raises ELFError."""
        starts = {name[:_START].encode() for name in wanted}
        for section in self.sections[np.isin(self.sections["type"], types)]:
            table = SymbolTable(self, section, kind)
            # Most files have none of a hundred names: to search each of them would take most of the child's time.
            there = {start for start in starts if table.mentions(start)}
            if there:
                yield [name for name in wanted if name[:_START].encode() in there], table

    def _headers(self, begin: int, count: int) -> np.ndarray:
        if begin + count * SECTION.itemsize > len(self.data):
            raise ELFError("the section headers reach beyond the end of the file")
        return np.frombuffer(self.data, SECTION, count, begin).copy()


class SymbolTable:
    """The symbols of one kind that a table of a file defines. Raises ELFError where it reaches beyond the file."""

    def __init__(self, elf: MappedElf, section: Any, kind: int) -> None:
        self._data, self._kind = elf.data, kind
        if section["link"] >= len(elf.sections):
            raise ELFError("a symbol table without names")
        names = elf.sections[section["link"]]
        self._low, self._high = int(names["offset"]), int(names["offset"]) + int(names["size"])
        self._begin, self._size = int(section["offset"]), int(section["size"])
        if max(self._high, self._begin + self._size) > len(self._data):
            raise ELFError("a symbol table reaches beyond the end of the file")

    def mentions(self, part: bytes) -> bool:
        """Whether these bytes are in the names."""
        return self._data.find(part, self._low, self._high) >= 0

    def find(self, name: str) -> Any:
        """The SYMBOL of that name, or None.

        A name may be the tail of another one in the string table (`pncclX` and `ncclX`), so names are searched as
        bytes and symbols by the place of their name.
        """
        sought = name.encode() + b"\0"
        place = self._data.find(sought, self._low, self._high)
        while place >= 0:
            hits = self._symbols[self._symbols["name"] == place - self._low]
            if hits.size:
                return hits[0]
            place = self._data.find(sought, place + 1, self._high)
        return None

    @cached_property
    def _symbols(self) -> np.ndarray:
        symbols = np.frombuffer(self._data, SYMBOL, self._size // SYMBOL.itemsize, self._begin)
        defined = (symbols["section"] != 0) & (symbols["info"] & 15 == self._kind) & (symbols["value"] != 0)
        found: np.ndarray = symbols[defined]
        return found
