"""InfluxQL's answers in MessagePack: runs of rows that are laid out alike become arrays without a value being touched.

Numbers of a fixed width stand at fixed places in such rows, so a run is one array of records. What is laid out
otherwise (texts, numbers of changing width) is unpacked row by row by msgpack.
https://github.com/msgpack/msgpack/blob/master/spec.md
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgpack
import numpy as np
from numpy.typing import NDArray

from store.schema.contract import StoreError

Column = NDArray[Any] | None
"""Numbers as they stand in the answer, in its byte order; None where all are missing."""

_NIL, _FALSE, _TRUE = 0xC0, 0xC2, 0xC3
# Number formats of a fixed width, by their first byte.
_FORMATS = {0xCB: ">f8", 0xCA: ">f4", 0xCC: ">u1", 0xCD: ">u2", 0xCE: ">u4", 0xCF: ">u8"}
_FORMATS |= {0xD0: ">i1", 0xD1: ">i2", 0xD2: ">i4", 0xD3: ">i8"}
_RUN_ROWS = 4096
_LEAST_ROWS = 32
"""Fewer rows than this are unpacked sooner than their layout is looked at."""
_WINDOW = 1 << 12
_SMALL_BYTES = 1 << 16
"""Messages below this are unpacked whole."""
_LARGE_AFTER_LARGE = 16
"""After a large message so many are taken for large."""


@dataclass(slots=True)
class Block:
    """Rows of a series, either as rows or, laid out alike, as columns."""

    count: int
    rows: list[list[Any]] = field(default_factory=list)
    columns: list[Column] = field(default_factory=list)


def flat(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The series of one whole message, their values as one block each, and what else it says."""
    for result in [message, *message.get("results", ())]:
        yield {key: value for key, value in result.items() if key == "error"}
        for series in result.get("series") or ():
            rows = series.get("values") or []
            yield series | {"values": [Block(len(rows), rows=rows)] if rows else []}


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where the cells of a row are: the place of each first byte, and of the number behind it."""

    size: int
    constant: NDArray[np.intp]
    small: NDArray[np.intp]
    """Places of whole numbers so small that they are their own first byte."""
    cells: list[tuple[int, str]]
    """Place and numpy type of each cell; an empty type where nothing is."""


class MessagePackReader:
    """An answer as it streams in."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._data = b""
        self._at = 0

    def series(self) -> Iterator[dict[str, Any]]:
        """Each series with name, tags, columns and blocks; what else an answer says, such as `error`, comes alike."""
        large = 0
        while self._more(1):
            found = [] if large else self._messages()
            for message in found:
                yield from flat(message)
            if found:
                continue
            large = (large or _LARGE_AFTER_LARGE) - 1
            for _ in range(self._header(0x80, 0xDE)):
                if self._value() != "results":
                    yield {"error": self._value()}
                    continue
                for _ in range(self._header(0x90, 0xDC)):
                    yield from self._result()

    def _messages(self) -> list[dict[str, Any]]:
        """The next messages, as many as are small: short series are unpacked sooner than they are looked at."""
        self._more(_SMALL_BYTES)
        unpacker, found, done = _unpacker(self._data[self._at : self._at + _SMALL_BYTES]), [], 0
        with suppress(msgpack.OutOfData):
            while True:
                found.append(unpacker.unpack())
                done = unpacker.tell()
        self._at += done
        return found

    def _result(self) -> Iterator[dict[str, Any]]:
        for _ in range(self._header(0x80, 0xDE)):
            key = self._value()
            if key != "series":
                yield {key: self._value()}
                continue
            for _ in range(self._header(0x90, 0xDC)):
                found: dict[str, Any] = {}
                for _ in range(self._header(0x80, 0xDE)):
                    name = self._value()
                    found[name] = list(self._blocks()) if name == "values" else self._value()
                yield found

    def _blocks(self) -> Iterator[Block]:
        left = self._header(0x90, 0xDC)
        while left:
            block = self._run(left) if left >= _LEAST_ROWS else None
            block = block or self._plain(min(left, 8 * _LEAST_ROWS))
            left -= block.count
            yield block

    def _run(self, most: int) -> Block | None:
        """The next rows that are laid out as the first of them; None where these are few."""
        layout = self._layout()
        if layout is None:
            return None
        most = min(most, _RUN_ROWS)
        self._more(most * layout.size)
        most = min(most, (len(self._data) - self._at) // layout.size)
        if most < _LEAST_ROWS:
            return None
        raw = np.frombuffer(self._data, np.uint8, most * layout.size, self._at).reshape(most, layout.size)
        alike = (raw[:, layout.constant] == raw[0, layout.constant]).all(1) & (raw[:, layout.small] < 0x80).all(1)
        count = most if alike.all() else int(alike.argmin())
        if count < _LEAST_ROWS:
            return None
        raw = raw[:count]
        columns = [np.ndarray(count, kind, raw, at, (layout.size,)) if kind else None for at, kind in layout.cells]
        self._at += count * layout.size
        return Block(count, columns=columns)

    def _layout(self) -> _Layout | None:
        """How the row that comes next is laid out; None where something in it has no fixed width."""
        self._more(1 << 16)
        data, at = self._data, self._at
        try:
            cells, begin = (
                (data[at] & 0x0F, 1) if data[at] >> 4 == 9 else (int.from_bytes(data[at + 1 : at + 3], "big"), 3)
            )
            if data[at] >> 4 != 9 and data[at] != 0xDC:
                return None
            constant, small, found, place = list(range(begin)), [], [], begin
            for _ in range(cells):
                first = data[at + place]
                kind = _FORMATS.get(first, "")
                if first < 0x80:
                    small.append(place)
                    found.append((place, "u1"))
                elif kind or first == _NIL:
                    constant.append(place)
                    found.append((place + 1, kind))
                else:
                    return None
                place += 1 + (np.dtype(kind).itemsize if kind else 0)
        except IndexError:
            return None
        return _Layout(place, np.array(constant, np.intp), np.array(small, np.intp), found)

    def _plain(self, most: int) -> Block:
        rows: list[list[Any]] = []
        window = 1 << 16
        while len(rows) < most:
            self._more(window)
            unpacker = _unpacker(self._data[self._at : self._at + window])
            done, before = 0, len(rows)
            try:
                while len(rows) < most:
                    rows.append(unpacker.unpack())
                    done = unpacker.tell()
            except msgpack.OutOfData:
                if len(rows) == before:
                    window = self._wider(window)
            self._at += done
        return Block(len(rows), rows=rows)

    def _value(self) -> Any:
        window = _WINDOW
        while True:
            self._more(window)
            unpacker = _unpacker(self._data[self._at : self._at + window])
            try:
                found = unpacker.unpack()
            except msgpack.OutOfData:
                window = self._wider(window)
                continue
            self._at += unpacker.tell()
            return found

    def _wider(self, window: int) -> int:
        if not self._more(window + 1):
            raise StoreError("the answer ends before its end: the InfluxDB server or the network broke off")
        return window * 4

    def _header(self, small: int, large: int) -> int:
        """Length of the map (0x80, 0xDE) or array (0x90, 0xDC) that comes next."""
        if not self._more(1):
            self._wider(0)
        first = self._data[self._at]
        if first & 0xF0 == small:
            self._at += 1
            return first & 0x0F
        width = {large: 2, large + 1: 4}.get(first)
        if width is None or not self._more(1 + width):
            raise StoreError("the answer is no InfluxQL answer: does the address name an InfluxDB server?")
        length = int.from_bytes(self._data[self._at + 1 : self._at + 1 + width], "big")
        self._at += 1 + width
        return length

    def _more(self, size: int) -> bool:
        """See to it that so many bytes are there, if they come at all; whether they are."""
        if len(self._data) - self._at >= size:
            return True
        parts, there = [self._data[self._at :]], len(self._data) - self._at
        while there < size and (piece := next(self._pieces, None)):
            parts.append(piece)
            there += len(piece)
        self._data, self._at = b"".join(parts), 0
        return there >= size


def _unpacker(data: bytes) -> msgpack.Unpacker:
    unpacker = msgpack.Unpacker(raw=False, unicode_errors="replace", max_buffer_size=0)
    unpacker.feed(data)
    return unpacker
