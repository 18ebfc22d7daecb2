"""Names of machines and devices in a store, and suggestions for an unknown name."""

from __future__ import annotations

import time
from collections.abc import Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from cli.queries.fleet_status import LOOK_NS, last_readings, last_seen
from store.schema.contract import StoreError

if TYPE_CHECKING:
    from store.schema.contract import Store

_HOUR_NS, _MINUTE_NS = 3600 * 10**9, 60 * 10**9
_DEVICES = ("gpu", "rdma")
_SHOWN = 6


def machines(store: Store, back: int) -> list[str]:
    """Machines with a reading in the last `back` ns before the newest reading (orders are none), or with a verdict."""
    newest = max(last_readings(store, time.time_ns()).values(), default=None)
    if newest is None and store.span() is None:
        return []
    seen = set() if newest is None else set(last_seen(store, newest, back))
    return sorted(seen | set(store.read("verdict", columns=()).column("machine").to_pylist()))


def matching(store: Store, patterns: Sequence[str], place: str, noun: str = "machine") -> list[str]:
    """The machines that match names or patterns such as `m00*`. Raises StoreError for one without a match, no `noun`.

    A machine that has been silent for an hour and has no verdict is unknown.
    """
    known = machines(store, LOOK_NS)
    if not all(_matches(known, pattern) for pattern in patterns):
        known = machines(store, _HOUR_NS)
    for pattern in patterns:
        if not _matches(known, pattern):
            raise StoreError(f"{place} has no {noun} {pattern}: {near(pattern, known)}")
    return sorted({name for pattern in patterns for name in _matches(known, pattern)})


def _matches(known: Sequence[str], pattern: str) -> list[str]:
    return [name for name in known if name == pattern or fnmatchcase(name, pattern)]


def near(name: str, known: Sequence[str]) -> str:
    """A suggestion: similar names, else the known names."""
    if not known:
        return "it holds no reading; start the agent"
    if alike := get_close_matches(name, known, 3):
        return f"did you mean {' or '.join(alike)}?"
    some = ", ".join(known) if len(known) <= _SHOWN else f"{', '.join(known[:_SHOWN])} … ({len(known)} in all)"
    return f"it has {some}"


def check_device(store: Store, machine: str, device: str) -> None:
    """Raises StoreError for a device that the store does not know of this machine."""
    known = devices(store, machine)
    if device not in known:
        hint = near(device, known) if known else "the store has no reading of its devices"
        raise StoreError(f"{machine} has no device {device}: {hint}")


def devices(store: Store, machine: str) -> list[str]:
    """Devices of a machine as verdicts name them: those last read, and those with a verdict or event."""
    from detector.timeseries.rows import device_of, rows_of  # loads numpy

    found = set()
    for table in ("verdict", "event"):
        rows = store.read(table, columns=("device",))
        if "device" in rows.column_names:
            pairs = zip(rows.column("machine").to_pylist(), rows.column("device").to_pylist(), strict=True)
            found |= {device for name, device in pairs if name == machine and device}
    end = last_readings(store, time.time_ns()).get(machine, time.time_ns())
    for table in {*_DEVICES} & {*store.tables()}:
        rows = rows_of(table, store.read(table, end - _MINUTE_NS, end + _MINUTE_NS, ()))
        found |= {device_of(table, ident[1:]) for ident in rows.idents if ident[0] == machine}
    return sorted(filter(None, found))
