"""What a running host engine of DCGM knows: health of GPUs and NVSwitches, counters of switches, activity of units.

It is read only where `sources` names it. Measuring the activity of tensor cores and the other units holds the
profiling hardware, which a user's own profiler may need: `dcgm_activity = false` leaves it alone.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent.context import Context, SourceUnavailableError
from agent.nvml.dcgm.client import Client, find_dcgm
from agent.system.events import Event, Severity, samples
from store.schema.catalogue import METRICS
from store.schema.sample import Sample, Value

SYSTEMS = {
    0x1: "pcie",
    0x2: "nvlink",
    0x4: "pmu",
    0x8: "microcontroller",
    0x10: "memory",
    0x20: "sm",
    0x40: "inforom",
    0x80: "thermal",
    0x100: "power",
    0x200: "driver",
    0x400: "nvswitch",
    0x800: "nvswitch",
}
"""dcgmHealthSystems_t; what DCGM holds against no system of these, such as a grave Xid, is `device`."""
_LOAD = ("thermal", "power")
"""Violations of these come from load and cooling: a fault only where the task gets slower."""
_AGAIN_NS = 300 * 10**9
"""An incident that DCGM goes on naming is reported again: a detector lets go of it after ten minutes without."""
_HELD = 2.5
"""Periods for which something is repeated: the agent and its child have clocks of their own."""
_RESET_SXIDS = (20034.0, 22013.0)
"""Fatal ones that every reset of a GPU causes (Fabric Manager user guide)."""
_COLUMNS = {
    table: frozenset(metric.name for metric in METRICS.values() if metric.table == table)
    for table in ("gpu", "nvswitch")
}


class Dcgm:
    """Columns of the table `gpu`, which the loop puts into the rows of NVML, rows of switches, and events of health."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._said: dict[tuple[str, str, str], int] = {}
        """(system, device, severity) -> when its incident was last reported."""
        self._slow: dict[str, dict[str, dict[str, float]]] = {"gpu": {}, "nvswitch": {}}
        self._slow_at, self._note = 0.0, ""
        self._ratios: dict[str, dict[str, float]] = {}
        self._ratios_at = 0.0

    def read(self, now: int) -> list[Sample]:
        """Rows and events. Raises OSError with DCGM's own words where nothing is read."""
        steady = time.monotonic()
        answers = self._client.read(steady)
        if not answers and self._client.error:
            raise OSError(self._client.error)
        events = list[Event]()
        for answer in answers:
            self._ratios, self._ratios_at = _numbers(answer.get("gpus"), "gpu"), steady
            events += self._noted(str(answer.get("note", ""))[:200])
            if "incidents" in answer:
                events += self._judged(now, answer)
        fresh = steady - self._ratios_at <= _HELD * self._client.period_s
        gpus = {index: dict(values) for index, values in self._ratios.items()} if fresh else {}
        if steady - self._slow_at <= _HELD * self._client.slow_s:
            for index, masks in self._slow["gpu"].items():
                gpus.setdefault(index, {}).update(masks)
        rows = [_row("gpu", "gpu", index, values) for index, values in sorted(gpus.items())]
        if any("incidents" in answer for answer in answers):
            rows += [_row("nvswitch", "switch", name, values) for name, values in self._slow["nvswitch"].items()]
        return rows + samples("dcgm", now, events)

    def close(self) -> None:
        """End the child."""
        self._client.close()

    def _noted(self, note: str) -> list[Event]:
        changed, self._note = note != self._note, note
        return [Event("dcgm_activity", "", "info", note)] if note and changed else []

    def _judged(self, now: int, answer: Mapping[str, Any]) -> list[Event]:
        """Events of incidents that are news; the masks and the switches' rows are remembered."""
        incidents = [one for one in _listed(answer, "incidents") if isinstance(one, list) and len(one) == 4]
        masks = {str(device): {"health_failures": 0, "health_warnings": 0} for device in _listed(answer, "known")}
        events = list[Event]()
        for device, system, fails, words in incidents:
            device = str(device)
            if device not in masks or not isinstance(system, int):
                continue
            masks[device]["health_failures" if fails else "health_warnings"] |= system & 0xFFFFFFFF
            name = SYSTEMS.get(system, "device")
            severity: Severity = "crit" if fails and name not in _LOAD else "warn"
            if now - self._said.get((name, device, severity), -_AGAIN_NS) >= _AGAIN_NS:
                self._said[name, device, severity] = now
                events.append(Event(f"health:{name}", device, severity, f"DCGM: {str(words)[:300]}"))
        switches = _numbers(answer.get("switches"), "nvswitch")
        for values in switches.values():
            if values.get("fatal_sxid") in _RESET_SXIDS:
                values["fatal_sxid"] = 0.0
        self._slow, self._slow_at = {"gpu": {}, "nvswitch": switches}, time.monotonic()
        for device, mask in masks.items():
            kind, _, number = device.partition(":")
            if kind in self._slow:
                self._slow[kind].setdefault(number, {}).update({name: float(bits) for name, bits in mask.items()})
        return events


def open_source(context: Context) -> Dcgm:
    """The source. Raises SourceUnavailableError where DCGM is not installed."""
    paths = find_dcgm(Path(context.config.root))
    if not paths:
        raise SourceUnavailableError("libdcgm.so is not installed (package datacenter-gpu-manager)")
    return Dcgm(Client(paths, context.config.period_seconds, context.config.dcgm_activity))


def _listed(answer: Mapping[str, Any], key: str) -> list[Any]:
    """A list of the child's answer, and no more of it than a machine has devices and DCGM incidents."""
    found = answer.get(key)
    return found[:2048] if isinstance(found, list) else []


def _numbers(found: object, table: str) -> dict[str, dict[str, float]]:
    """By name, the columns that the catalogue knows; a child's answer may be anything."""
    if not isinstance(found, dict):
        return {}
    return {
        name: {column: float(value) for column, value in values.items() if _is_known(table, column, value)}
        for name, values in list(found.items())[:64]
        if name.isdecimal() and len(name) <= 3 and isinstance(values, dict)
    }


def _is_known(table: str, column: str, value: object) -> bool:
    return column in _COLUMNS[table] and isinstance(value, int | float) and abs(value) < 2**63


def _row(table: str, key: str, name: str, values: Mapping[str, Value]) -> Sample:
    return Sample(table, {key: name, **values})
