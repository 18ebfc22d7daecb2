"""Line protocol: batches as lines for InfluxDB, and the columns and values of its tags and fields.

Machine and device keys become tags. All else is a field, also the keys with unbounded values (a task's name, a
library), so that the number of series is machines x devices, however long it runs. Every line carries the field
`_row`, so that a row without any value is a row too.
https://docs.influxdata.com/influxdb/v2/reference/syntax/line-protocol/
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import Any

import msgspec

from store.schema.columns import Type, check_name, fitted, key_columns, type_found, type_of
from store.schema.contract import StoreError, UnfitError
from store.schema.sample import Batch, Value

ROW = "_row"
"""The field that every line has."""
NTH = "_nth"
"""The tag that keeps apart rows of one time, machine and device; the first of them goes without it."""
FIELD_KEYS = frozenset({"task", "library"})
"""Keys with unbounded values: stored as fields, since each value of a tag begins a series."""

PLAIN_BYTES = 32 << 20
"""A body is never unpacked beyond this: a post of 5,000 lines is some megabytes, a megabyte of bad will a gigabyte."""

_encode = msgspec.json.Encoder().encode  # writes the shortest digits that give the same double, faster than repr()
_LINE = re.compile(rb'(?:[^"\n\\]|\\.|"(?:[^"\\]|\\.)*")+', re.DOTALL)
_TROUBLE = re.compile(r'["%\\\x00-\x1f\x7f]')
_RANGE = range(-(2**63), 2**63)
_EXACT: tuple[type, ...] = (int, float, str, type(None))
_INFINITE = (float("inf"), float("-inf"))
_KINDS: dict[type, Type] = {int: "int64", float: "double", str: "string"}
_WRITTEN: dict[Type, str] = {"double": "%b", "int64": "%bi", "string": "%b"}
_TAKES: dict[Type, tuple[type, ...]] = {"int64": (int,), "double": (int, float), "string": (str,)}


@dataclass(frozen=True, slots=True)
class _Form:
    """How the samples of one table with these columns and Python types are written."""

    tags: Callable[[Sequence[Any]], Sequence[Value]]
    series: bytes
    numbers: Callable[[Sequence[Any]], Sequence[float]]
    """The time is the last of them."""
    whole: Callable[[Sequence[Any]], Sequence[int]] | None
    texts: Callable[[Sequence[Any]], Sequence[str]] | None
    line: bytes


_Shape = tuple[tuple[str, ...], tuple[type, ...]]
"""Columns and Python types of a sample's values, the time behind them."""
_NONE: tuple[_Shape, _Form | None] = (((), ()), None)


def lines_of(batches: Iterable[Batch]) -> list[bytes]:
    """One line a sample, without line ends; raises StoreError for a name that no table or column can have.

    Rows of the same table, time, machine and device are all stored if one call has them; a later call replaces them.
    """
    lines: list[bytes] = []
    seen: dict[tuple[bytes, ...], int] = {}
    shapes: dict[str, tuple[_Shape, _Form | None]] = {}
    for batch in batches:
        machine = tag(batch.machine)
        for sample in batch.samples:
            values = (*sample.values.values(), batch.time if sample.time is None else sample.time)
            shape = tuple(sample.values), tuple(map(type, values))
            # Most samples have the shape of their table's last: to compare is cheaper than to hash all names again.
            last, form = shapes.get(sample.table, _NONE)
            if shape != last:
                form = _form(sample.table, *shape)
                shapes[sample.table] = shape, form
            cells = _cells(form, values) if form else None
            if form is None or cells is None:
                values, form = _converted(sample.table, shape[0], values)
                cells = _cells(form, values) or []
            tags = (machine, *map(tag, form.tags(values)))
            place = (form.series, *tags, cells[-1])
            nth = seen[place] = seen.get(place, -1) + 1
            if form.texts:
                cells[-1:-1] = map(text, form.texts(values))
            lines.append(form.line % (*tags, b",%b=%d" % (NTH.encode(), nth) if nth else b"", *cells))
    return lines


def pack(lines: Iterable[bytes]) -> bytes:
    """Lines as one gzip member of the lightest level; members one after the other are a body too."""
    press = zlib.compressobj(1, zlib.DEFLATED, 31)
    return press.compress(b"\n".join(lines) + b"\n") + press.flush()


def plain(body: bytes) -> bytes:
    """The text of a body of one or more gzip members.

    Raises StoreError for bytes that are no such members, or that are more than PLAIN_BYTES when unpacked.
    """
    found = bytearray()
    try:
        while body:
            member = zlib.decompressobj(31)
            found += member.decompress(body, PLAIN_BYTES + 1 - len(found))
            if len(found) > PLAIN_BYTES:
                raise StoreError(f"packed lines are more than {PLAIN_BYTES >> 20} MB when they are unpacked")
            if not member.eof:
                raise zlib.error("it breaks off")
            body = member.unused_data
    except zlib.error as error:
        raise StoreError(f"packed lines cannot be unpacked: {error}") from error
    return bytes(found)


def unpack(body: bytes) -> list[bytes]:
    """The lines of a body of one or more members. Raises StoreError as `plain` does."""
    return split(plain(body))


def split(text: bytes) -> list[bytes]:
    """The lines of a text; a line end within quotes is part of its line."""
    return _LINE.findall(text)


@lru_cache(maxsize=1 << 16)
def tag(value: str | None) -> bytes:
    """A tag's value: what cannot stand there as %XX, an empty text as a lone %, none at all as nothing."""
    if value is None:
        return b""
    plain = _TROUBLE.sub(lambda found: f"%{ord(found[0]):02X}", str(value)) or "%"
    escaped = re.sub(r"([,= ])", r"\\\1", plain)
    return escaped.encode(errors="replace")


def untag(value: str) -> str | None:
    """What a tag's value, as the server gives it back, stands for."""
    if not value:
        return None
    return "" if value == "%" else re.sub(r"%([0-9A-F]{2})", lambda found: chr(int(found[1], 16)), value)


def text(value: str) -> bytes:
    """A text as a field's value."""
    return b'"%b"' % value.encode(errors="replace").replace(b"\\", b"\\\\").replace(b'"', b'\\"')


def field_name(table: str, column: str, kind: Type) -> str:
    """The field that holds a column; of columns that no catalogue knows each type has its own.

    A server fixes the type of a field by the first value it sees, and refuses the others.
    """
    return column if kind == "double" or type_of(table, column) else f"{column}.{kind}"


def column_of(table: str, field: str) -> tuple[str, Type | None]:
    """The column that a field holds, and its type where names tell."""
    column, _, kind = field.partition(".")
    known = type_of(table, column)
    return column, known or (kind if kind in ("int64", "string") else None)  # type: ignore[return-value]


def tag_keys(table: str) -> tuple[str, ...]:
    """The device keys of a table that are tags."""
    return tuple(key for key in key_columns(table)[2:] if key not in FIELD_KEYS)


@lru_cache(maxsize=4096)
def _form(table: str, columns: tuple[str, ...], kinds: tuple[type, ...]) -> _Form | None:
    """How to write such samples; None where a value must be converted first."""
    for name in (table, *columns):
        check_name(name)
    if "time" in columns or "machine" in columns:
        raise UnfitError(f"a sample of table {table} has a value named time or machine: give it another name")
    keys = [at for at, name in enumerate(columns) if name in tag_keys(table) and kinds[at] is not type(None)]
    fields: dict[Type, list[int]] = {"double": [], "int64": [], "string": []}
    for at, (name, kind) in enumerate(zip(columns, kinds[:-1], strict=True)):
        if kind not in _EXACT or (at in keys and kind is not str):
            return None
        found = type_of(table, name) or _KINDS.get(kind)
        if found is None or kind is type(None) or at in keys:
            continue
        if kind not in _TAKES[found]:
            return None
        fields[found].append(at)
    names = [f"{field_name(table, columns[at], kind)}={_WRITTEN[kind]}" for kind in fields for at in fields[kind]]
    series = ",".join([table, "machine=%b", *(f"{columns[at]}=%b" for at in keys)])
    return _Form(
        _pick(keys),
        series.encode(),
        _pick([*fields["double"], *fields["int64"], len(columns)]),
        _pick(fields["int64"]) if fields["int64"] else None,
        _pick(fields["string"]) if fields["string"] else None,
        f"{series}%b {','.join([f'{ROW}=1i', *names])} %b".encode(),
    )


def _pick(places: list[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """Items at these places as a tuple; neighbours are copied at once."""
    first, count = places[0] if places else 0, len(places)
    if places == list(range(first, first + count)):
        return itemgetter(slice(first, first + count))
    return itemgetter(*places)


def _cells(form: _Form, values: Sequence[Any]) -> list[bytes] | None:
    """The numbers as digits; None where one of them is none, or more than 64 bits hold."""
    if form.whole:
        whole = form.whole(values)
        if max(whole) not in _RANGE or min(whole) not in _RANGE:
            return None
    digits = _encode(form.numbers(values))
    return None if b"n" in digits else digits[1:-1].split(b",")  # null: not a number, or infinite


def _converted(table: str, columns: tuple[str, ...], values: tuple[Any, ...]) -> tuple[tuple[Any, ...], _Form]:
    """The values made to fit their columns, those that cannot left out, and how to write them."""
    keys = tag_keys(table)
    found = []
    for name, value in zip(columns, values[:-1], strict=True):
        kind = "string" if name in keys else type_of(table, name) or type_found([value]) or "string"
        fit = fitted(table, name, kind, value)
        found.append(None if fit in _INFINITE else fit)
    found.append(values[-1])
    form = _form(table, columns, tuple(map(type, found)))
    assert form is not None
    return tuple(found), form
