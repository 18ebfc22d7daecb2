"""Labels of a recording: what is known to be wrong in it, and when."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

_LARGEST = 10**6


class LabelError(ValueError):
    """labels.json is not there or not as it must be; one line with the file."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is known to be wrong: times in Unix ns, `device` None where the machine as a whole is meant."""

    machine: str
    device: str | None
    kind: str
    start: int
    end: int
    group: str = ""
    """What its machines share, such as `rack:3` or `switch:rail2`; empty for a fault of one machine."""
    others: tuple[tuple[str, str | None], ...] = ()
    """Further machines and their devices that are part of the same incident: naming any of them is right."""

    def devices(self) -> dict[str, str | None]:
        """By machine that is right to name, the device."""
        return {self.machine: self.device, **dict(self.others)}


@dataclass(frozen=True, slots=True)
class Labels:
    """All that is known of a recording; no verdict counts either way in the spans `unjudged`."""

    machines: int
    faults: tuple[Fault, ...]
    unjudged: tuple[tuple[int, int], ...] = ()

    def together(self) -> Labels:
        """The same with one fault for a group: labels of one `group`, kind and start."""
        return replace(self, faults=tuple(_together(self.faults)))


def read_labels(folder: Path) -> Labels:
    """The labels beside a recording's tables. Raises LabelError."""
    file = folder / "labels.json"
    try:
        found = json.loads(file.read_text())
        faults = tuple(_fault(entry) for entry in found["faults"])
        unjudged = tuple((int(span["start"]), int(span["end"])) for span in found.get("unjudged", ()))
        machines = int(found["machines"])
    except FileNotFoundError:
        raise LabelError(f"{file} is missing: a recording without labels cannot be evaluated") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise LabelError(f"{file} is not as labels must be: {type(error).__name__} {error}".splitlines()[0]) from error
    if not 0 < machines <= _LARGEST:
        raise LabelError(f"{file} speaks of {machines} machines")
    return Labels(machines, faults, unjudged)


def _fault(entry: Mapping[str, Any]) -> Fault:
    device, start, end = entry.get("device"), int(entry["start"]), int(entry["end"])
    if end < start:
        raise ValueError(f"a fault ends at {end}, before it starts")
    named = None if device is None else str(device)
    return Fault(str(entry["machine"]), named, str(entry["kind"]), start, end, str(entry.get("group") or ""))


def _together(faults: Iterable[Fault]) -> list[Fault]:
    found: dict[tuple[str, str, int] | int, Fault] = {}
    for number, fault in enumerate(faults):
        key = (fault.group, fault.kind, fault.start) if fault.group else number
        if key in found:
            first = found[key]
            others = (*first.others, (fault.machine, fault.device))
            fault = replace(first, end=max(first.end, fault.end), others=others)
        found[key] = fault
    return list(found.values())
