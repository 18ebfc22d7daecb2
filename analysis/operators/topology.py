"""Which switches lie above each machine, from a topology file in the format of SLURM's topology.conf."""

from __future__ import annotations

import re
from pathlib import Path

MOST_NODES = 200_000
_LIST = re.compile(r"([^,\[\]\s]*)(?:\[([^\]]*)\])?([^,\[\]\s]*)(?:,|$)")
_LINE = re.compile(r"SwitchName=(\S+)", re.IGNORECASE)
_BELOW = re.compile(r"\b(Nodes|Switches)=(\S+)", re.IGNORECASE)


class TopologyError(ValueError):
    """The file is no topology; the message is one line with the file and the cause."""


def read_topology(path: Path) -> dict[str, tuple[str, ...]]:
    """Machine -> the switches above it, the nearest first. Raises TopologyError.

    Lines are `SwitchName=leaf1 Nodes=m[01-16]` and `SwitchName=spine Switches=leaf[1-4]`; `#` begins a comment.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TopologyError(f"{path} cannot be read: {getattr(error, 'strerror', None) or 'no text'}") from None
    above: dict[str, str] = {}
    machines: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#")[0]
        named, below = _LINE.search(words), _BELOW.findall(words)
        if words.strip() and not (named and below):
            raise TopologyError(f"{path}, line {number}: expected SwitchName=NAME Nodes=LIST or Switches=LIST")
        for kind, listed in below if named else ():
            names = expanded(listed, f"{path}, line {number}")
            above |= dict.fromkeys(names, named[1] if named else "")
            machines += names if kind.lower() == "nodes" else []
    if not machines:
        raise TopologyError(f"{path} names no machine: expected lines SwitchName=NAME Nodes=LIST")
    return {machine: _chain(machine, above) for machine in machines}


def expanded(listed: str, where: str) -> list[str]:
    """The names of a list such as `m[01-03,7],head`. Raises TopologyError."""
    names: list[str] = []
    for before, inside, after in _LIST.findall(listed):
        if not (before or inside or after):
            continue
        for part in inside.split(",") if inside else [""]:
            low, _, high = part.partition("-")
            if part and not (low.isdecimal() and (not high or high.isdecimal())):
                raise TopologyError(f"{where}: {part[:40]} is no range of numbers")
            numbers = range(int(low), int(high or low) + 1) if part else [None]
            if len(names) + len(numbers) > MOST_NODES:
                raise TopologyError(f"{where}: more than {MOST_NODES:,} names")
            names += [f"{before}{'' if at is None else str(at).zfill(len(low))}{after}" for at in numbers]
    return names


def _chain(machine: str, above: dict[str, str]) -> tuple[str, ...]:
    chain: list[str] = []
    while (switch := above.get(chain[-1] if chain else machine)) and switch not in chain:
        chain.append(switch)
    return tuple(chain)
