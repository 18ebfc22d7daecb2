"""Whether faulty machines share a leaf or pod more than chance would have it: then the switch is the suspect."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from scipy.stats import hypergeom

from analysis.topology.places import Topology

CHANCE = 0.05
"""Above this probability, over all switches of a level together, it counts as chance."""
_FEWEST = 2


@dataclass(frozen=True, slots=True)
class SharedSwitch:
    """A leaf or pod on which faulty machines gather."""

    level: str
    """leaf or pod."""
    name: str
    faulty: tuple[str, ...]
    machines: int
    """How many machines are on it."""
    chance: float
    """Probability that so many of the faulty machines are on one of the switches of this level by chance."""

    def in_words(self) -> str:
        """One sentence."""
        return (
            f"{len(self.faulty)} of {self.machines} machines on {self.level} {self.name} are faulty "
            f"({', '.join(self.faulty[:4])}{', …' if len(self.faulty) > 4 else ''}): suspect the switch, its optics or "
            f"cables first (chance {self.chance:.1g})"
        )


def shared_switches(faulty: Collection[str], watched: Collection[str], topology: Topology) -> tuple[SharedSwitch, ...]:
    """The leaves and pods that the faulty machines share, the least likely by chance first.

    `watched` are the machines that could have been found faulty. The chance is the hypergeometric tail times the number
    of switches (Bonferroni). A pod is left out where one of its leaves explains the same machines.
    """
    places = {machine: place for machine in watched if (place := topology.place(machine))}
    ill = {machine for machine in faulty if machine in places}
    found: list[SharedSwitch] = []
    for level in ("leaf", "pod"):
        groups: dict[str, list[str]] = {}
        for machine, place in places.items():
            names = place.switches if level == "leaf" else (place.pod,) * bool(place.pod)
            for name in names:
                groups.setdefault(name, []).append(machine)
        shared = [_shared(level, name, members, ill, (len(places), len(groups))) for name, members in groups.items()]
        explained = {one.faulty for one in found}
        found += [one for one in shared if one and one.chance <= CHANCE and one.faulty not in explained]
    return tuple(sorted(found, key=lambda one: (one.chance, one.name)))


def _shared(level: str, name: str, members: list[str], ill: set[str], size: tuple[int, int]) -> SharedSwitch | None:
    here = tuple(sorted(ill.intersection(members)))
    if len(here) < _FEWEST:
        return None
    watched, switches = size
    chance = float(hypergeom.sf(len(here) - 1, watched, len(members), len(ill))) * switches
    return SharedSwitch(level, name, here, len(members), min(1.0, chance))
