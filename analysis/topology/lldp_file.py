"""Reads what a machine hears from its switches by LLDP: the output of `lldpcli show neighbors -f json` (or json0).

Source: lldpcli(8) of lldpd. `-f json` writes an object for one neighbour and a list for several, and names of things as
keys; `-f json0` always writes lists with a key `name`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from analysis.topology.places import Link


def is_lldp(text: str) -> bool:
    """Whether this looks like lldpcli's JSON."""
    return text.lstrip().startswith("{") and '"lldp"' in text[:200]


def read_lldp(text: str, machine: str) -> list[Link]:
    """A link for each switch that this machine hears. Raises ValueError for broken JSON or without any switch."""
    try:
        found = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"broken JSON: {str(error).splitlines()[0]}") from error
    leaves = [
        leaf
        for entry in _listed(found.get("lldp"))
        for port in _listed(entry.get("interface"))
        for leaf in _names(port)
    ]
    if not leaves:
        raise ValueError("no switch is heard: run lldpcli show neighbors -f json on the machine")
    return [Link(machine, leaf) for leaf in leaves]


def _listed(value: Any) -> list[dict[str, Any]]:
    return [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, dict)]


def _names(port: dict[str, Any]) -> Iterator[str]:
    """The switches on one port, in either form."""
    inner = [port] if "chassis" in port else [one for value in port.values() for one in _listed(value)]
    for one in inner:
        for chassis in _listed(one.get("chassis")):
            if name := _name(chassis):
                yield name


def _name(chassis: dict[str, Any]) -> str:
    """The system name; without one, the chassis id."""
    for key in ("name", "id"):
        found = chassis.get(key)
        for value in found if isinstance(found, list) else [found]:
            text = value.get("value") if isinstance(value, dict) else value
            if isinstance(text, str) and text:
                return text
    first = next(iter(chassis), "")
    return first if isinstance(chassis.get(first), dict) else ""
