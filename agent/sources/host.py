"""The operating system: processors, memory, disks, network, and pressure (PSI, Documentation/accounting/psi.rst)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from agent.context import Context
from store.schema.sample import Sample, Value

_FILE_BYTES = 1 << 16
_OF_DISKS = {"disk_read_bytes_total": "read_bytes", "disk_write_bytes_total": "write_bytes"}
_OF_LINKS = {"network_receive_bytes_total": "bytes_recv", "network_transmit_bytes_total": "bytes_sent"}
"""Columns that add up all devices, and psutil's names for them."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Totals since boot, of which ratios are made."""

    time: int
    """Unix ns."""
    cpu: dict[str, float]
    """Seconds by state, all processors together."""
    pressure: dict[str, int]
    """Microseconds in which some thread waited, by resource."""
    disk_busy_ms: dict[str, int]


def parse_pressure(text: str) -> int:
    """Microseconds in which some thread waited, from a file under /proc/pressure. Raises ValueError on another form."""
    for line in text.splitlines():
        if line.startswith("some "):
            for word in line.split():
                if word.startswith("total="):
                    return int(word[6:])
    raise ValueError("a pressure file has no line 'some … total='")


def parse_retransmits(text: str) -> int:
    """TCP segments sent again, from /proc/net/snmp. Raises ValueError on another form."""
    lines = [line.split() for line in text.splitlines() if line.startswith("Tcp:")]
    if len(lines) != 2 or "RetransSegs" not in lines[0]:
        raise ValueError("/proc/net/snmp has no TCP line with RetransSegs")
    return int(lines[1][lines[0].index("RetransSegs")])


def ratios(before: Reading, after: Reading) -> dict[str, Value]:
    """Shares of the time between two readings, 0 to 1."""
    elapsed_ns = after.time - before.time
    if elapsed_ns <= 0:
        return {}
    spent = {state: after.cpu[state] - before.cpu.get(state, 0.0) for state in after.cpu}
    # guest time is contained in user time
    total = sum(share for state, share in spent.items() if not state.startswith("guest"))
    values: dict[str, Value] = {}
    if total > 0:
        idle, waiting = spent.get("idle", 0.0), spent.get("iowait", 0.0)
        values["cpu_utilization_ratio"] = _ratio(1 - (idle + waiting) / total)
        values["cpu_system_ratio"] = _ratio(
            (spent.get("system", 0.0) + spent.get("irq", 0.0) + spent.get("softirq", 0.0)) / total
        )
        values["cpu_iowait_ratio"] = _ratio(waiting / total)
    for resource, waited in after.pressure.items():
        if resource in before.pressure:
            values[f"{resource}_pressure_ratio"] = _ratio((waited - before.pressure[resource]) * 1000 / elapsed_ns)
    busy = [after.disk_busy_ms[disk] - before.disk_busy_ms.get(disk, 0) for disk in after.disk_busy_ms]
    if busy:
        values["disk_utilization_ratio"] = _ratio(max(busy) * 1_000_000 / elapsed_ns)
    return values


def _ratio(value: float) -> float:
    return min(max(value, 0.0), 1.0)


class _File:
    """A file under /proc that stays open: opening one costs as much as reading it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def read(self) -> str:
        """What it says now. Raises OSError where it is missing or unreadable."""
        if self._descriptor is None:
            self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        return os.pread(self._descriptor, _FILE_BYTES, 0).decode()

    def close(self) -> None:
        """Let go of it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class Total:
    """A counter over devices that come and go: it grows by what each was seen to count, and falls with none."""

    def __init__(self) -> None:
        self._before: Mapping[str, int] | None = None
        self._sum = 0

    def add(self, counts: Mapping[str, int]) -> int:
        """The total, with what these devices have counted by now; what one brings along is not from here."""
        before = dict.fromkeys(counts, 0) if self._before is None else self._before
        self._sum += sum(max(count - before.get(name, count), 0) for name, count in counts.items())
        self._before = counts
        return self._sum


class Host:
    """Reads the machine; the first reading has totals only, since a share needs two."""

    def __init__(self, proc: Path) -> None:
        self._pressure = {resource: _File(proc / "pressure" / resource) for resource in ("cpu", "memory", "io")}
        self._network, self._load = _File(proc / "net/snmp"), _File(proc / "loadavg")
        self._sums = {column: Total() for column in (*_OF_DISKS, *_OF_LINKS)}
        self._before: Reading | None = None

    def read(self, now: int) -> list[Sample]:
        """One row. What this kernel does not have (PSI, disks) is missing from it."""
        disks = _disks()
        reading = self._totals(now, disks)
        values = self._counters()
        if disks:
            values |= self._summed(_OF_DISKS, disks)
        if self._before is not None:
            values |= ratios(self._before, reading)
        self._before = reading
        return [Sample("host", values)]

    def close(self) -> None:
        """Let go of the files."""
        for file in (*self._pressure.values(), self._network, self._load):
            file.close()

    def _totals(self, now: int, disks: Mapping[str, Any]) -> Reading:
        pressure = {}
        for resource, file in self._pressure.items():
            # Missing where the kernel has no PSI, unreadable where it is switched off.
            with contextlib.suppress(OSError):
                pressure[resource] = parse_pressure(file.read())
        busy = {name: getattr(disk, "busy_time", 0) for name, disk in disks.items()}
        return Reading(now, psutil.cpu_times()._asdict(), pressure, busy)

    def _counters(self) -> dict[str, Value]:
        memory = psutil.virtual_memory()
        links = psutil.net_io_counters(pernic=True, nowrap=False)
        links.pop("lo", None)
        return {
            "memory_utilization_ratio": 1 - memory.available / memory.total,
            **self._summed(_OF_LINKS, links),
            "tcp_retransmit_segments_total": parse_retransmits(self._network.read()),
            "context_switches_total": psutil.cpu_stats().ctx_switches,
            "processes_running": float(self._load.read().split()[3].split("/")[0]),
        }

    def _summed(self, columns: Mapping[str, str], devices: Mapping[str, Any]) -> dict[str, Value]:
        return {
            column: self._sums[column].add({name: getattr(device, field) for name, device in devices.items()})
            for column, field in columns.items()
        }


def _disks() -> dict[str, Any]:
    """Counters by disk; of a disk with partitions only the disk, which has counted what they did."""
    found: dict[str, Any] = psutil.disk_io_counters(perdisk=True, nowrap=False) or {}
    return {name: disk for name, disk in found.items() if not _is_partition(name, found)}


def _is_partition(name: str, disks: Mapping[str, Any]) -> bool:
    whole = name.rstrip("0123456789")
    return whole != name and (whole in disks or (whole.endswith("p") and whole[:-1] in disks))


def open_source(context: Context) -> Host:
    """The source, ready to read."""
    return Host(context.proc)
