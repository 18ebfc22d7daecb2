"""Conditions of the rules: each looks at all entities of a table at once, and says on which it holds."""

from __future__ import annotations

import numpy as np

from detector.methods.evidence.state_table import NO_TASK, STALE_S, StateTable
from detector.stats.arrays import Bools, Floats, Ints
from detector.stats.grouped import median, middle_of
from store.schema.time import NEVER, SECOND

QUORUM, QUORUM_SHARE = 3, 0.6
"""So many peers, and such a share of those that are known, must read the same before it is what they should read."""
LESS = 0.97
"""Below this share of the peers' value is less."""
FLAPS_S = 300.0
_FLEET_S, _OTHERS = 600.0, 2
"""Machines of which a link fell within so long, this one apart, from which on links fall everywhere."""
BOUNCE_S = 10.0
"""A link that comes up and falls again so soon has fallen once."""
ERROR_RATES = {
    "ecc_corrected_total": 10.0,
    "nvlink_errors_total": 0.6,
    "pcie_replay_total": 2.0,
    "packet_sequence_errors_total": 2.0,
    "ack_timeouts_total": 0.3,
    "symbol_errors_total": 15.0,
    "pfc_transmit_frames_total": 5_000.0,
}
"""Errors a second from which on a memory, a link or a cable is failing. A pause frame is none, but each can stop its
sender for the 84 µs that 65,535 quanta of 512 bits take at 400 Gbit/s (IEEE 802.1Qbb): 5,000 are 42 % of the time, of a
receiver that is slow or a NIC that fails (Guo and others, SIGCOMM'16)."""
OFTEN, VERY_OFTEN, _WITH_LOSSES = (1.0, 15.0), (3.0, 5.0), (1 / 3, 15.0)
"""Multiples of these, and seconds without an error after which they are over: one burst is no failing part."""
_LOST = ("packet_sequence_errors_total", "ack_timeouts_total")
"""Counters of what a port loses, for whatever reason."""
QUIET_S = 30.0
"""A port through which nothing flows for this long is quiet: longer than an iteration."""
BUSY = 0.2
FAR_BELOW = 0.7
"""Of the peers' clock under load: chips of one model differ by less, also hot ones and those of another stage."""
BELOW, ALIKE = 0.92, 0.03
"""Of the clock of the machine's other GPUs, which do the same work: chips of one model differ by half of it at most."""
THERMAL, _BRAKE = 0x40, 0x80  # NVML clock event reasons that hardware gives


def nonzero(states: StateTable, column: str, now: int) -> Bools:
    """It reads more than what is acknowledged; the last reading counts until there is another."""
    at = states.row(column)
    found: Bools = states.value[at] > states.acknowledged[at]
    return found


def repeats(states: StateTable, column: str, now: int) -> Bools:
    """It happened twice within some minutes, the last time not long ago; a bounce is once, unless it counts as two.

    Where it happens on other machines as well, twice on one is chance: there it takes three times by its counter.
    """
    at = states.row(column)
    near = now - states.last[at] <= QUIET_S * SECOND
    apart = states.last[at] - states.before[at]
    bounced = (apart > 0) & (apart <= BOUNCE_S * SECOND)
    found: Bools = near & (apart <= FLAPS_S * SECOND) & ~bounced
    recent = now - states.last[at] <= _FLEET_S * SECOND
    if found.any() and len(np.unique(states.machine[: len(recent)][recent])) > _OTHERS:
        found &= states.value[at] - states.acknowledged[at] >= 3
    return found


def errs_often(states: StateTable, column: str, now: int) -> Bools:
    """It counts more errors a second, on average over the last minute, than what works ever does, and goes on to."""
    return _errs(states, column, now, *OFTEN)


def errs_very_often(states: StateTable, column: str, now: int) -> Bools:
    """The same of several times as many errors."""
    return _errs(states, column, now, *VERY_OFTEN)


def _errs(states: StateTable, column: str, now: int, times: float, quiet_s: float) -> Bools:
    at = states.row(column)
    last, since = states.last[at], states.since[at]
    goes_on = (now - last <= quiet_s * SECOND) | ((last == since) & (now - since <= STALE_S * SECOND))
    found: Bools = (states.rate[at] >= times * ERROR_RATES[column]) & goes_on
    return found


def corrupts(states: StateTable, column: str, now: int) -> Bools:
    """It counts errors on the wire, a third of what fails by itself, and loses packets: its cable, not the network."""
    lost = np.logical_or.reduce([errs_often(states, name, now) for name in _LOST])
    found: Bools = lost & _errs(states, column, now, *_WITH_LOSSES)
    return found


def down(states: StateTable, column: str, now: int) -> Bools:
    """It reads zero, and was not always so or is not so on its peers."""
    value = states.now(column, now)
    found: Bools = (value == 0) & ((states.peak[states.row(column)] > 0) | below_ports_of_its_name(states, value))
    return found


def below_peers(states: StateTable, column: str, now: int) -> Bools:
    """It reads less than its peers of the same task agree upon."""
    return below_quorum(states.now(column, now), states.task)


def below_peers_under_load(states: StateTable, column: str, now: int) -> Bools:
    """The same of a GPU at work: at rest its links slow down to save power."""
    duty, power = states.now("duty_cycle_ratio", now), states.now("power_watts", now)
    known = power[~np.isnan(power)]
    drawn = power >= 0.5 * median(known) if len(known) else np.zeros(len(power), bool)
    busy = np.where(np.isnan(duty), drawn, duty >= BUSY)
    return below_quorum(np.where(busy, states.now(column, now), np.nan), states.task)


def clock_far_below_peers(states: StateTable, column: str, now: int) -> Bools:
    """Its clock under load is far below that of the peers of its task: since when does not matter."""
    duty, value = states.now("duty_cycle_ratio", now), states.now(column, now)
    busy = np.where((duty >= BUSY) & (states.task != NO_TASK), value, np.nan)
    if np.isnan(busy).all() or np.nanmin(busy) >= FAR_BELOW * np.nanmax(busy):
        return np.zeros(len(value), bool)
    usual = middle_of(busy, states.task)
    known = np.bincount(states.task[~np.isnan(busy)], minlength=int(states.task.max(initial=0)) + 1)
    found: Bools = (busy < FAR_BELOW * usual) & (known[np.maximum(states.task, 0)] > QUORUM)
    return found


def clock_below_siblings(states: StateTable, column: str, now: int) -> Bools:
    """Its clock under load is below that of all other GPUs of its machine, which are alike, since whenever."""
    duty, value = states.now("duty_cycle_ratio", now), states.now(column, now)
    busy = np.where((duty >= BUSY) & (states.task != NO_TASK), value, np.nan)
    if np.isnan(busy).all() or np.nanmin(busy) >= BELOW * np.nanmax(busy):
        return np.zeros(len(value), bool)
    usual = middle_of(busy, states.machine)
    size = int(states.machine.max()) + 1
    known = np.bincount(states.machine[~np.isnan(busy)], minlength=size)
    unlike = np.bincount(states.machine[np.abs(busy - usual) > ALIKE * usual], minlength=size)
    found: Bools = (busy < BELOW * usual) & (known > QUORUM)[states.machine] & (unlike == 1)[states.machine]
    return found


def slower_port(states: StateTable, column: str, now: int) -> Bools:
    """A port that is up has a lower rate than the ports of its name on the peers."""
    up = states.now("link_up", now) != 0  # unknown is taken for up
    return below_ports_of_its_name(states, np.where(up, states.now(column, now), np.nan))


def no_traffic(states: StateTable, column: str, now: int) -> Bools:
    """Nothing flows in either direction any more, while it does through the ports of its name on the peers."""
    at = [states.row(name) for name in ("transmit_bytes_total", "receive_bytes_total")]
    last = states.last[at].max(0)
    flowing = (now - last <= QUIET_S * SECOND).astype(float)
    there = ~np.isnan(states.now(column, now)) & (states.now("link_up", now) != 0)
    found: Bools = (last > NEVER) & below_ports_of_its_name(states, np.where(there, flowing, np.nan))
    return found


def failing(states: StateTable, column: str, now: int) -> Bools:
    """It reads zero where its peers do not."""
    value = states.now(column, now)
    found: Bools = (value == 0) & below_quorum(value, states.name)
    return found


def hw_throttled(states: StateTable, column: str, now: int) -> Bools:
    """The GPU's own protection holds its clocks down: not the power limit, which is usual under load."""
    bits = np.nan_to_num(states.now(column, now), posinf=0.0).astype(np.int64)
    found: Bools = bits & (THERMAL | _BRAKE) != 0
    return found


def idle_machines(gpus: StateTable, now: int) -> frozenset[str]:
    """Machines of which all GPUs are known to be at rest: spare ones, or done with their task."""
    duty = gpus.now("duty_cycle_ratio", now)[: len(gpus.entities)]
    most = np.full(int(gpus.machine.max(initial=0)) + 1, np.nan)
    np.fmax.at(most, gpus.machine[: len(duty)], duty)
    return frozenset(gpus.entities[at][0] for at in np.flatnonzero(most[gpus.machine[: len(duty)]] < BUSY))


def below_ports_of_its_name(states: StateTable, value: Floats) -> Bools:
    """Less than the ports of the same name; but names may be dealt out differently, so the machine must lack it too."""
    mine = states.task != NO_TASK
    size = int(states.machine.max(initial=0)) + 1
    total: Floats = np.bincount(states.machine[mine], np.nan_to_num(value[mine]), size).astype(np.float64)
    team = np.full(len(total), NO_TASK, np.int64)
    team[states.machine[mine]] = states.task[mine]
    odd = below_quorum(value, states.name)
    return odd & below_quorum(total, team)[states.machine] if odd.any() else odd


def below_quorum(value: Floats, group: Ints) -> Bools:
    """[entity]: whether its value is less than the one on which its group agrees; false where no value is known."""
    known = value[~np.isnan(value) & (group >= 0)]
    if not len(known) or known.min() == known.max():  # as nearly always, and quicker
        return np.zeros(len(value), bool)
    usual = quorum_value(value, group)
    found: Bools = value < LESS * usual
    return found


def quorum_value(value: Floats, group: Ints) -> Floats:
    """[entity]: the commonest value of its group, where enough of them have it; else NaN."""
    out = np.full(len(value), np.nan)
    known = np.flatnonzero(~np.isnan(value) & (group >= 0))
    if not len(known):
        return out
    worth, code = np.unique(value[known], return_inverse=True)
    pair, votes = np.unique(group[known] * len(worth) + code, return_counts=True)
    owner = pair // len(worth)
    order = np.lexsort((votes, owner))
    first = int(group.max()) + 1
    best, most = np.full(first, np.nan), np.zeros(first, np.int64)
    best[owner[order]], most[owner[order]] = worth[pair[order] % len(worth)], votes[order]  # the last one stays
    all_of = np.bincount(group[known], minlength=first)
    best[(most < QUORUM) | (most < QUORUM_SHARE * all_of)] = np.nan
    out[known] = best[group[known]]
    return out
