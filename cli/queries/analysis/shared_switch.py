"""The leaf or pod that a faulty machine shares with others, where the configuration names a topology."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cli.queries.analysis.placement import read_faulty
from store.schema.time import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

    from analysis.placement.shared_switch import SharedSwitch
    from detector.model.verdict import Verdict
    from store.schema.contract import Store

_LOOK_NS = 60 * SECOND


def read_shared(source: Store, machine: str, now: int, topology: str) -> SharedSwitch | None:
    """The likeliest switch that this and other machines with verdicts are on at `now` (Unix ns).

    None without a topology, or where chance explains them. Raises StoreError, and ValueError or OSError for a topology
    that cannot be read.
    """
    from analysis.placement.shared_switch import shared_switches
    from analysis.topology.files import read_topology

    if not topology:
        return None
    network, faulty = read_topology([Path(topology)]), read_faulty(source, now)
    shared = shared_switches(faulty, _watched(source, now) | set(faulty), network) if len(faulty) > 1 else ()
    return next((one for one in shared if machine in one.faulty), None)


def switch_notes(topology: str) -> Callable[[Store, Verdict], tuple[str, ...]]:
    """What an alert says of shared switches: a sentence, or nothing."""

    def notes(source: Store, verdict: Verdict) -> tuple[str, ...]:
        found = read_shared(source, verdict.machine, verdict.time, topology)
        return (found.in_words(),) if found else ()

    return notes


def _watched(source: Store, now: int) -> set[str]:
    """The machines that could have been found faulty: those that were read in the minute before."""
    there = next((name for name in ("host", "gpu", "nccl") if name in source.tables()), None)
    return set(source.read(there, now - _LOOK_NS, now, ()).column("machine").unique().to_pylist()) if there else set()
