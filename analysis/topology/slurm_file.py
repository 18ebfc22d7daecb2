"""Reads Slurm's topology.conf (topology/tree and topology/block).

Source: the man page topology.conf(5): SwitchName=… with Nodes=… or Switches=…, and BlockName=… with Nodes=….
"""

from __future__ import annotations

import re

from analysis.topology.hostlist import expanded
from analysis.topology.places import Link

_PAIR = re.compile(r"(\w+)=(\S+)")


def is_slurm(text: str) -> bool:
    """Whether this looks like a topology.conf."""
    return re.search(r"^\s*(SwitchName|BlockName)=", text, re.IGNORECASE | re.MULTILINE) is not None


def read_slurm(text: str) -> list[Link]:
    """Switches with nodes are leaves, the switch above one is its pod. Raises ValueError for a wrong list of names."""
    nodes: dict[str, list[str]] = {}
    above: dict[str, str] = {}
    for line in re.sub(r"\\\n", " ", text).splitlines():
        pairs = {key.lower(): value for key, value in _PAIR.findall(line.split("#")[0])}
        name = pairs.get("switchname") or pairs.get("blockname")
        if name is None:
            continue
        for leaf in expanded(name):
            nodes.setdefault(leaf, []).extend(expanded(pairs["nodes"]) if "nodes" in pairs else [])
        for below in expanded(pairs["switches"]) if "switches" in pairs else []:
            above[below] = name
    return [Link(machine, leaf, above.get(leaf, "")) for leaf, machines in nodes.items() for machine in machines]
