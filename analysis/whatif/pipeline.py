"""Sends and receives between stages: to which compute operation each belongs, and which two are one transfer."""

from __future__ import annotations

import numpy as np

from analysis.whatif.dependencies import Edges, join
from analysis.whatif.operations import BACKWARD, FORWARD, Operations, joined, positions
from detector.stats.arrays import Bools, Ints

_CLOCK_S = 5e-5
"""Clocks of two streams of one worker agree to this."""


def add_between_stages(edges: Edges, group: Ints, found: Operations) -> Bools:
    """Add what sends, receives and computing wait for; pairs become one group in place.

    Returns [step]: whether each send has its receive. Where a direction has no sends or no receives at all, compute
    operations wait for those of the neighbouring stage directly.
    """
    whole = np.ones(len(found.steps), bool)
    if found.stages < 2:
        return whole
    for direction, ahead in (("forward", 1), ("backward", -1)):
        sends, receives = (np.flatnonzero(found.of(f"{direction}-{role}")) for role in ("send", "recv"))
        computes = np.flatnonzero(found.of(f"{direction}-compute"))
        if not len(sends) or not len(receives):
            _link(edges, found, computes, ahead)
            continue
        if not len(computes):
            continue
        ends = []
        for comms, is_receive in ((sends, False), (receives, True)):
            peer = found.global_chunk[computes] + (-ahead if is_receive else ahead)
            # The first and the last chunk of the model have a partner on one side only.
            partnered = (peer >= 0) & (peer < found.chunks)
            slots = _slots(found, computes, partnered, comms, is_receive)
            _attach(edges, found, computes, (comms, slots), is_receive)
            ends.append(comms[(slots >= 0) & partnered[slots]])
        whole &= _pair(group, found, ends, ahead)
    _add_first_backward(edges, found)
    return whole


def _slots(found: Operations, computes: Ints, partnered: Bools, comms: Ints, is_receive: bool) -> Ints:
    """[send or receive]: the place in `computes` of the operation that it serves; -1: none, it was never launched."""
    line = found.line
    lines, first = np.unique(line[computes], return_index=True)
    size = np.diff(first, append=len(computes))
    real = _is_launched(found, comms, (lines, computes[first], computes[first + size - 1]), is_receive)
    at = np.searchsorted(lines, line[comms[real]])
    position, count = positions(at), np.bincount(at, minlength=len(lines))
    served = np.flatnonzero(partnered)
    first_served = np.searchsorted(line[computes[served]], lines)
    # Some recorders note transfers that bring nothing, as on the first chunk of an interleaved pipeline, others do not.
    is_terse = (count < size) & (count == np.diff(first_served, append=len(served)))
    if is_receive:
        # Those that do may still lack the very first receive.
        position += ((count == size - 1) & ~is_terse)[at]
    terse = served[np.minimum(first_served[at] + position, len(served) - 1)] if len(served) else position
    slots = np.full(len(comms), -1, np.int64)
    slots[real] = np.where(position < size[at], np.where(is_terse[at], terse, first[at] + position), -1)
    return slots


def _is_launched(found: Operations, comms: Ints, passes: tuple[Ints, Ints, Ints], is_receive: bool) -> Bools:
    """Which are real: the recorder also notes receives after the last pass and sends before the first has ended.

    All steps and replicas of a stage run the same program, so the majority decides, not one worker's clock. `passes`
    has the workers' timelines with the first and last compute operation of each.
    """
    lines, first, last = passes
    at = np.minimum(np.searchsorted(lines, found.line[comms]), len(lines) - 1)
    known = lines[at] == found.line[comms]
    if is_receive:
        real = found.start[comms] <= found.start[last[at]] + _CLOCK_S
    else:
        ends = found.start + found.duration
        real = ends[comms] >= ends[first[at]] - _CLOCK_S
    _, program = np.unique(joined(found.stage[comms], found.order[comms]), return_inverse=True)
    share = np.bincount(program, real & known) / np.bincount(program)
    launched: Bools = (share[program] >= 0.5) & known
    return launched


def _attach(edges: Edges, found: Operations, computes: Ints, comms: tuple[Ints, Ints], is_receive: bool) -> None:
    """A send waits for its compute operation; that waits for its receive, which waits for the one before."""
    places, slots = (side[comms[1] >= 0] for side in comms)
    if not is_receive:
        edges.add(computes[slots], places)
        return
    edges.add(places, computes[slots])
    later = found.order[computes[slots]] > 0
    edges.add(computes[slots[later] - 1], places[later])


def _pair(group: Ints, found: Operations, ends: list[Ints], ahead: int) -> Bools:
    """Make the nth send of a stage and the nth receive of its neighbour one group; [step]: all have partners."""
    places = np.concatenate(ends)
    is_receive = np.arange(len(places)) >= len(ends[0])
    sender = (found.stage[places] - np.where(is_receive, ahead, 0)) % found.stages
    side = joined(found.line[places], is_receive.astype(np.int64))
    key = np.zeros(len(found), np.int64)
    key[places] = joined(found.step[places], found.replica[places], sender, positions(side))
    chosen = np.zeros(len(found), bool)
    chosen[places] = True
    join(group, chosen, key)
    members = np.bincount(group[places], minlength=len(found))[group[places]]
    whole: Bools = np.bincount(found.step[places], members != 2, minlength=len(found.steps)) == 0
    return whole


def _link(edges: Edges, found: Operations, computes: Ints, ahead: int) -> None:
    """Without sends and receives: the nth pass of a chunk waits for the nth pass of the chunk before it."""
    chunk = found.global_chunk[computes]
    turn = positions(joined(found.line[computes], chunk))
    turn = joined(found.step[computes], found.replica[computes], turn) * (found.chunks + 2) + chunk
    edges.add(*_matched(turn + ahead, turn, computes))


def _matched(keys: Ints, others: Ints, places: Ints) -> tuple[Ints, Ints]:
    """The places that have the key of another one among `others`, and the other's place; each key is there once."""
    _, here, there = np.intersect1d(keys, others, return_indices=True)
    return places[here], places[there]


def _add_first_backward(edges: Edges, found: Operations) -> None:
    """The first gradient is awaited from the second last forward pass before the first backward pass on."""
    computes = np.flatnonzero(found.of(FORWARD, BACKWARD))
    line = found.line
    first = np.flatnonzero(found.of(BACKWARD)[computes] & (found.order[computes] == 0))
    has_two = (first >= 2) & (line[computes[np.maximum(first - 2, 0)]] == line[computes[first]])
    first = first[has_two]
    receives = np.flatnonzero(found.of("backward-recv") & (found.order == 0))
    _, here, there = np.intersect1d(line[computes[first]], line[receives], return_indices=True)
    edges.add(computes[first[here] - 2], receives[there])
