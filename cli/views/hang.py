"""A hang as text: state of the ranks in each communicator, and their stacks, equal ones grouped."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from detector.explain.rank_snapshot import CREDIT, GPU, RECEIVES, RESTS, SENDS, WAITS
from detector.model.operations import named

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from detector.explain.hang_report import HangReport
    from detector.explain.rank_snapshot import Members, Place
    from detector.explain.stack_groups import StackGroup

_MACHINES = 4
_STATES = {
    SENDS: ("a chunk handed to the network is not sent yet", "to"),
    CREDIT: ("a chunk is ready and its receiver takes none", "to"),
    RECEIVES: ("waits for a chunk", "from"),
    GPU: ("its GPU offers no chunk to send", ""),
    WAITS: ("unfinished", ""),
    RESTS: ("idle", ""),
}


def rank_words(places: Sequence[Place]) -> str:
    """Names of ranks: `rank 3 (m01 gpu:0)`, or `ranks 0-2, 4 (m00, m04)`."""
    if len(places) == 1:
        one = places[0]
        rank = f"process {one.pid}" if one.rank is None else f"rank {one.rank}"
        return f"{rank} ({one.machine} gpu:{one.gpu})"
    machines = sorted({place.machine for place in places})
    few = len(machines) <= _MACHINES
    shown = ", ".join(machines) if few else f"{len(machines)} machines, {machines[0]} … {machines[-1]}"
    known = sorted({place.rank for place in places if place.rank is not None})
    return f"ranks {_runs(known)} ({shown})" if known else f"{len(places)} processes ({shown})"


def _runs(numbers: Iterable[int]) -> str:
    """Sorted numbers with ranges: `0-2, 4`."""
    runs = (list(run) for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]))
    ends = ((run[0][1], run[-1][1]) for run in runs)
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ends)


def rank_lines(still: HangReport) -> list[str]:
    """The communicators of the faulty machine at the time of the verdict, and the states of their ranks."""
    lines = []
    for comm, members in groupby(still.members, lambda one: one.comm):
        together = list(members)
        size = f", {together[0].ranks} ranks" if together[0].ranks else ""
        lines += [f"communicator {comm[:8]}{size}", *(f"  {_member(one)}" for one in together)]
    return lines


def _member(one: Members) -> str:
    state, word = _STATES[one.state]
    peer = f" {word} rank {one.peer}" if one.peer is not None and word else ""
    count = "" if one.operations is None else f", {one.operations} operations"
    return f"{rank_words(one.places)}: {named(one.operation)}{count}; {state}{peer}"


def stacks_title(still: HangReport) -> str:
    """Heading of the stacks: number of ranks, and the communicator that the deviating ones share."""
    count = sum(len(group.places) for group in still.stacks)
    shared = f"; the deviating ranks share communicator {still.odd_share[:8]}" if still.odd_share else ""
    return f"stacks of {count} ranks, numbered as in the largest communicator{shared}"


def stack_heads(still: HangReport) -> list[tuple[str, StackGroup]]:
    """A line for each group of equal stacks, the deviating groups first, and the group."""
    return [(_head(group), group) for group in sorted(still.stacks, key=lambda group: not group.odd)]


def _head(group: StackGroup) -> str:
    if group.form == "none":
        return f"{rank_words(group.places)}: no stack, {group.error}"
    odd = "deviates: " if group.odd else ""
    lesser = "" if group.form == "python" else f"; kernel stack only: {group.error}"
    since = f"after {group.still_seconds:.0f} s without an operation"
    state = f"; {group.waits_in}" if group.form == "python" and group.waits_in else ""
    return f"{odd}{rank_words(group.places)}, {since}{state}{lesser}"
