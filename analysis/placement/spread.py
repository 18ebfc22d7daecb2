"""Over how many leaves, pods and rails each communicator goes, and what that costs where it was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.placement.communicators import Communicator
from analysis.topology.places import Topology


@dataclass(frozen=True, slots=True)
class Spread:
    """Where one communicator is."""

    communicator: Communicator
    leaves: tuple[str, ...]
    pods: tuple[str, ...]
    rails: tuple[str, ...]
    unknown: tuple[str, ...]
    """Machines that the topology does not name."""


@dataclass(frozen=True, slots=True)
class KindSpread:
    """The communicators of one kind of parallelism that are on more than one machine."""

    kind: str
    count: int
    over_leaves: int
    """How many of them go over more than one leaf."""
    over_pods: int
    over_rails: int
    most_leaves: int
    most_pods: int
    sending_within: float
    """Mean share of time with data on the way in the network, of those within one leaf; NaN: none, or not measured."""
    sending_over: float
    """The same, of those over several leaves."""
    rate_within: float
    """Median payload per second of a rank; NaN: none, or not measured."""
    rate_over: float


def spread_of(communicators: Sequence[Communicator], topology: Topology) -> tuple[Spread, ...]:
    """Each communicator's leaves, pods and rails, in the order given."""
    return tuple(_spread(one, topology) for one in communicators)


def _spread(one: Communicator, topology: Topology) -> Spread:
    places = {machine: topology.place(machine) for machine in one.machines}
    known = [place for place in places.values() if place is not None]
    rails = {topology.rail(machine, gpu) for machine, gpu in one.members} - {""}
    return Spread(
        one,
        tuple(sorted({place.leaf for place in known})),
        tuple(sorted({place.pod for place in known if place.pod})),
        tuple(sorted(rails)),
        tuple(machine for machine, place in places.items() if place is None),
    )


def by_kind(spreads: Sequence[Spread]) -> tuple[KindSpread, ...]:
    """One line a kind; communicators within a machine, which no placement changes, are left out."""
    wide = [one for one in spreads if len(one.communicator.machines) > 1]
    kinds = dict.fromkeys(one.communicator.kind for one in wide)
    return tuple(_kind(kind, [one for one in wide if one.communicator.kind == kind]) for kind in kinds)


def _kind(kind: str, found: list[Spread]) -> KindSpread:
    within = [one.communicator for one in found if len(one.leaves) <= 1]
    over = [one.communicator for one in found if len(one.leaves) > 1]
    return KindSpread(
        kind,
        len(found),
        len(over),
        sum(len(one.pods) > 1 for one in found),
        sum(len(one.rails) > 1 for one in found),
        max(len(one.leaves) for one in found),
        max(len(one.pods) for one in found),
        _middle([one.sending for one in within], np.mean),
        _middle([one.sending for one in over], np.mean),
        _middle([one.bytes_per_second for one in within], np.median),
        _middle([one.bytes_per_second for one in over], np.median),
    )


def _middle(values: list[float], measure: object) -> float:
    known = [value for value in values if not math.isnan(value)]
    assert callable(measure)
    return float(measure(known)) if known else float("nan")
