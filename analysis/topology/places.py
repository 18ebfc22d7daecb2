"""Where machines stand in the network: the leaf switches that they hang on, and the pod above."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Link:
    """One connection of a machine to a leaf switch, as a reader found it; empty: not known."""

    machine: str
    leaf: str
    pod: str = ""
    rail: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """Where one machine stands."""

    leaf: str
    """Its leaf switch; with several, all of them joined by +: machines on the same set stand equally near."""
    pod: str
    rails: tuple[str, ...]
    """In the order of their names."""
    switches: tuple[str, ...]
    """Its leaf switches one by one."""


@dataclass(frozen=True, slots=True)
class Topology:
    """The places of machines."""

    places: dict[str, Place]
    nearest: dict[str, dict[str, int]] = field(default_factory=dict)
    """Machine (empty: every machine) -> GPU -> number of the network adapter nearest to it."""

    def place(self, machine: str) -> Place | None:
        """Where a machine stands, by its name or the part of it before the first dot; None: not known."""
        found = self.places.get(machine)
        return found if found is not None else self.places.get(machine.split(".")[0])

    def above(self) -> dict[str, tuple[str, ...]]:
        """Machine -> leaf and, where it is known, pod: the switches above it, the nearest first."""
        return {machine: (place.leaf, *filter(None, [place.pod])) for machine, place in self.places.items()}

    def rail(self, machine: str, gpu: str) -> str:
        """The rail of a GPU: that of its nearest adapter, else by its number; empty where no rails are known."""
        place = self.place(machine)
        if place is None or not place.rails:
            return ""
        nearest = self.nearest.get(machine, self.nearest.get("", {}))
        number = nearest.get(gpu, int(gpu) if gpu.isascii() and gpu.isdigit() else -1)
        return place.rails[number % len(place.rails)] if number >= 0 else ""


def topology_of(links: Iterable[Link], nearest: dict[str, dict[str, int]] | None = None) -> Topology:
    """Join the links of each machine. Raises ValueError for a leaf that is in two pods."""
    by_machine: dict[str, list[Link]] = {}
    pods: dict[str, str] = {}
    for link in links:
        by_machine.setdefault(link.machine, []).append(link)
        if link.pod and pods.setdefault(link.leaf, link.pod) != link.pod:
            raise ValueError(f"leaf {link.leaf} is in pod {pods[link.leaf]} and in pod {link.pod}; it can be in one")
    return Topology({machine: _place(found, pods) for machine, found in by_machine.items()}, nearest or {})


def _place(links: list[Link], pods: dict[str, str]) -> Place:
    leaves = tuple(sorted({link.leaf for link in links}))
    above = sorted({pods[leaf] for leaf in leaves if leaf in pods})
    rails = tuple(sorted({link.rail for link in links if link.rail}))
    return Place("+".join(leaves), "+".join(above), rails, leaves)
