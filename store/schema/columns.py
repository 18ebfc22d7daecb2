"""Which type a column has, and how a sample's value becomes one of them."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Literal

from store.schema.catalogue import METRICS, TABLES
from store.schema.contract import UnfitError
from store.schema.sample import Value

log = logging.getLogger(__name__)

Type = Literal["int64", "double", "string"]
WIDTH: tuple[Type, ...] = ("int64", "double", "string")
"""From narrow to wide: each type can hold what those before it hold (a double, integers up to 2**53)."""

_NAME = re.compile(r"[a-z][a-z0-9_]{0,99}")


def type_of(table: str, column: str) -> Type | None:
    """The catalogue's type of a column; None where the catalogue does not know it.

    Gauges are doubles and counters int64, but what is measured in seconds or joules has fractions, and a time in
    nanoseconds needs more bits than a double has.
    """
    if column == "time":
        return "int64"
    known = TABLES.get(table)
    if column == "machine" or (known is not None and column in known.keys):
        return "string"
    metric = METRICS.get(f"{table}.{column}")
    if metric is None:
        return None
    if metric.kind == "text":
        return "string"
    if metric.unit == "nanoseconds":
        return "int64"
    return "int64" if metric.kind == "counter" and metric.unit not in ("seconds", "joules") else "double"


def type_found(values: list[Value]) -> Type | None:
    """The narrowest type that holds these values; None where all are missing."""
    kinds = {type(value) for value in values if value is not None}
    if not kinds:
        return None
    if any(issubclass(kind, str) for kind in kinds):
        return "string"
    return "double" if any(issubclass(kind, float) for kind in kinds) else "int64"


def key_columns(table: str) -> tuple[str, ...]:
    """The key columns of a table, time first; of an unknown table time and machine."""
    known = TABLES.get(table)
    return known.key_columns if known is not None else ("time", "machine")


@lru_cache(maxsize=4096)
def check_name(name: str) -> str:
    """The name itself, if it can be a table's or a column's: lower case, digits, underscores. Raises UnfitError."""
    if not _NAME.fullmatch(name) or name.startswith("sqlite_"):
        raise UnfitError(f"{name!r} cannot name a table or column: use lower-case letters, digits and underscores")
    return name


def converter(kind: Type) -> Callable[[Value], Value]:
    """What turns a sample's value into this type; a number that the type cannot hold is unknown, thus None.

    The converters raise ValueError where text stands for a number.
    """
    return {"int64": _whole, "double": _real, "string": _text}[kind]


def fitted(table: str, column: str, kind: Type, value: Value) -> Value:
    """The value in its column's type; one that does not fit becomes null and is logged once, and the row is stored."""
    try:
        return converter(kind)(value)
    except (ValueError, TypeError):
        _warn(table, column, type(value).__name__)
        return None


@lru_cache(maxsize=1024)
def _warn(table: str, column: str, kind: str) -> None:
    log.warning("%s.%s is a number and was given a %s: such values are stored as null", table, column, kind)


def _whole(value: Value) -> int | None:
    if value is None:
        return None
    try:
        number = int(value)
    except OverflowError:  # an infinity
        return None
    except ValueError:
        if isinstance(value, str):
            raise
        return None  # not a number
    return number if -(2**63) <= number < 2**63 else None


def _real(value: Value) -> float | None:
    if value is None:
        return None
    number = float(value)
    return number if number == number else None


def _text(value: Value) -> str | None:
    if value is None:
        return None
    text = value if isinstance(value, str) else str(value)
    # The kernel's and other people's text may hold bytes that were no UTF-8.
    return text if text.isascii() else text.encode(errors="replace").decode()
