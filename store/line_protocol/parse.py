"""Line protocol, as `line_protocol` writes it, back as batches: for places that take rows, not lines."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import groupby

from store.line_protocol.write import NTH, ROW, column_of, untag
from store.schema.contract import StoreError
from store.schema.sample import Batch, Sample, Value
from store.schema.time import LATEST

_HEAD = re.compile(rb"((?:[^ \\]|\\.)+) (.*) (-?\d+)", re.DOTALL)
_TAG = re.compile(r",([a-z0-9_]+)=((?:[^,\\]|\\.)*)")
_FIELD = re.compile(r'([a-z0-9_.]+)=("(?:[^"\\]|\\.)*"|[^,]*)', re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)

Row = tuple[int, str, Sample]


def batches_of(lines: Iterable[bytes], unread: Callable[[StoreError], None] | None = None) -> list[Batch]:
    """The samples of these lines in their order, those of one time and machine that stand together as one batch.

    A line that no agent has written goes to `unread`; without that it raises StoreError.
    """
    rows = _rows(lines, unread)
    return [
        Batch(machine, time, tuple(sample for _, _, sample in found))
        for (time, machine), found in groupby(rows, lambda row: row[:2])
    ]


def members(body: bytes) -> list[bytes]:
    """The gzip members of a body, each still packed. Raises StoreError for bytes that are none."""
    found = []
    try:
        while body:
            member = zlib.decompressobj(31)
            member.decompress(body)
            if not member.eof:
                raise zlib.error("it breaks off")
            size = len(body) - len(member.unused_data)
            found.append(body[:size])
            body = body[size:]
    except zlib.error as error:
        raise StoreError(f"packed lines cannot be unpacked: {error}") from error
    return found


def _rows(lines: Iterable[bytes], unread: Callable[[StoreError], None] | None) -> Iterator[Row]:
    for line in lines:
        try:
            yield _row(line)
        except StoreError as error:
            if unread is None:
                raise
            unread(error)


def _row(line: bytes) -> Row:
    parts = _HEAD.fullmatch(line)
    if parts is None:
        raise _strange(line)
    try:
        table, machine, keys = _head(parts[1])
        values: dict[str, Value] = dict(keys)
        for field, cell in _FIELD.findall(parts[2].decode()):
            column = _column(table, field)
            if column:
                values[column] = _value(cell)
        time = int(parts[3])
    except ValueError as error:
        raise _strange(line) from error
    if abs(time) > LATEST:
        raise _strange(line)
    return time, machine, Sample(table, values)


def _strange(line: bytes) -> StoreError:
    return StoreError(f"this is no line of an agent: {line[:100]!r}")


@lru_cache(maxsize=1 << 16)
def _head(head: bytes) -> tuple[str, str, dict[str, str | None]]:
    """Table, machine and device keys: the same for every line of one device."""
    text = head.decode()  # UnicodeDecodeError is a ValueError
    keys = {key: untag(_ESCAPED.sub(r"\1", value)) for key, value in _TAG.findall(text)}
    machine = keys.pop("machine", None)
    if machine is None:
        raise ValueError("a line without a machine")
    keys.pop(NTH, None)
    return text.partition(",")[0], machine, keys


@lru_cache(maxsize=4096)
def _column(table: str, field: str) -> str:
    """The column that a field holds; empty for the one that only says that the row is there."""
    return "" if field == ROW else column_of(table, field)[0]


def _value(cell: str) -> Value:
    if cell[:1] == '"':
        plain = cell[1:-1]
        return _ESCAPED.sub(r"\1", plain) if "\\" in plain else plain
    return int(cell[:-1]) if cell[-1:] == "i" else float(cell)
