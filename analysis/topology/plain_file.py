"""Reads our own topology files: TOML with a table a leaf, or CSV with a row a machine.

[[leaf]]                        machine,leaf,pod,rail
name = "leaf1"                  m01,leaf1,pod1,
pod = "pod1"                    m02,leaf1,pod1,
machines = ["m[01-16]"]         m17,leaf2,pod1,
"""

from __future__ import annotations

import csv
import io

import msgspec

from analysis.topology.hostlist import expanded
from analysis.topology.places import Link


class _Leaf(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    machines: list[str]
    pod: str = ""
    rail: str | int = ""


class _File(msgspec.Struct, forbid_unknown_fields=True):
    leaf: list[_Leaf]


def is_toml(text: str) -> bool:
    """Whether this looks like our TOML."""
    return "[[leaf]]" in text


def is_csv(text: str) -> bool:
    """Whether this looks like our CSV: the first line names the columns machine and leaf."""
    return {"machine", "leaf"} <= {cell.strip() for cell in text.split("\n", 1)[0].split(",")}


def read_toml(text: str) -> list[Link]:
    """The links of a TOML file; `machines` may be in Slurm's bracket form. Raises ValueError for other content."""
    try:
        found = msgspec.toml.decode(text, type=_File)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(str(error).splitlines()[0].replace("`", "")) from error
    return [
        Link(machine, leaf.name, leaf.pod, str(leaf.rail))
        for leaf in found.leaf
        for names in leaf.machines
        for machine in expanded(names)
    ]


def read_csv(text: str) -> list[Link]:
    """The links of a CSV file with the columns machine and leaf, and pod and rail where known."""
    rows = csv.DictReader(io.StringIO(text), skipinitialspace=True)
    out = []
    for at, row in enumerate(rows, 2):
        cells = {
            key.strip(): (value or "").strip() for key, value in row.items() if key and not isinstance(value, list)
        }
        if not cells.get("machine") or not cells.get("leaf"):
            raise ValueError(f"line {at}: machine and leaf are needed")
        out.append(Link(cells["machine"], cells["leaf"], cells.get("pod", ""), cells.get("rail", "")))
    return out
