"""Rules: which readings are hard facts. One row a rule; a test looks at all entities of a table at once.

Items and intervals after ByteRobust (SOSP'25, arXiv 2509.16293, table of inspections): port flaps count when two come
within five minutes, a port that is down is given half a minute at most, zero RDMA traffic is a sign of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from detector.methods.evidence.state_table import NO_TASK, StateTable
from detector.model.text import quantity, subject
from detector.model.verdict import Level
from detector.stats.arrays import Bools, Floats, Ints
from store.schema.catalogue import METRICS
from store.schema.time import NEVER, SECOND

AGREE, SHARE = 3, 0.6
"""So many peers, and such a share of those that are known, must read the same before it is what they should read."""
LESS = 0.97
"""Below this share of the peers' value is less."""
FLAPS_S = 300.0
QUIET_S = 30.0
"""A port through which nothing flows for this long is quiet: longer than an iteration."""
BUSY = 0.2
_THERMAL, _BRAKE = 0x40, 0x80  # NVML clock event reasons that hardware gives

Test = Callable[[StateTable, str, int], Bools]


@dataclass(frozen=True, slots=True)
class Rule:
    """A column, what of it is a fact, how long it must last before it is said, and how long it must be over."""

    table: str
    column: str
    test: Test
    hold_s: float
    heal_s: float
    level: Level
    weight: float
    """Above 1 it stands for itself; otherwise another machine's hard fact may be its cause."""
    words: str
    """What is said of it; `in_words` has what can stand in braces."""
    alone: bool
    """Whether it speaks against a machine only while few show it: many at once are the network or the task."""


def marked(board: StateTable, column: str, now: int) -> Bools:
    """It reads more than what is forgiven; what was last read counts until something else is read."""
    at = board.row(column)
    found: Bools = board.value[at] > board.base[at]
    return found


def repeats(board: StateTable, column: str, now: int) -> Bools:
    """It happened twice within some minutes, the last time not long ago."""
    at = board.row(column)
    near = now - board.last[at] <= QUIET_S * SECOND
    found: Bools = near & (board.last[at] - board.before[at] <= FLAPS_S * SECOND)
    return found


def down(board: StateTable, column: str, now: int) -> Bools:
    """It reads zero, and was not always so or is not so on its peers."""
    value = board.now(column, now)
    found: Bools = (value == 0) & ((board.peak[board.row(column)] > 0) | less_by_name(board, value))
    return found


def less(board: StateTable, column: str, now: int) -> Bools:
    """It reads less than its peers of the same task agree upon."""
    return lacks(board.now(column, now), board.task)


def less_under_load(board: StateTable, column: str, now: int) -> Bools:
    """The same of a GPU at work: at rest its links slow down to save power."""
    duty, power = board.now("duty_cycle_ratio", now), board.now("power_watts", now)
    known = power[~np.isnan(power)]
    drawn = power >= 0.5 * np.median(known) if len(known) else np.zeros(len(power), bool)
    busy = np.where(np.isnan(duty), drawn, duty >= BUSY)
    return lacks(np.where(busy, board.now(column, now), np.nan), board.task)


def slower_port(board: StateTable, column: str, now: int) -> Bools:
    """A port that is up has a lower rate than the ports of its name on the peers."""
    up = board.now("link_up", now) != 0  # unknown is taken for up
    return less_by_name(board, np.where(up, board.now(column, now), np.nan))


def quiet(board: StateTable, column: str, now: int) -> Bools:
    """Nothing flows in either direction any more, while it does through the ports of its name on the peers."""
    at = [board.row(name) for name in ("transmit_bytes_total", "receive_bytes_total")]
    last = board.last[at].max(0)
    flowing = (now - last <= QUIET_S * SECOND).astype(float)
    there = ~np.isnan(board.now(column, now)) & (board.now("link_up", now) != 0)
    found: Bools = (last > NEVER) & less_by_name(board, np.where(there, flowing, np.nan))
    return found


def failing(board: StateTable, column: str, now: int) -> Bools:
    """It reads zero where its peers do not."""
    value = board.now(column, now)
    found: Bools = (value == 0) & lacks(value, board.name)
    return found


def slowed(board: StateTable, column: str, now: int) -> Bools:
    """The GPU's own protection holds its clocks down: not the power limit, which is usual under load."""
    bits = np.nan_to_num(board.now(column, now), posinf=0.0).astype(np.int64)
    found: Bools = bits & (_THERMAL | _BRAKE) != 0
    return found


def resting(gpus: StateTable, now: int) -> frozenset[str]:
    """Machines all of whose GPUs are known to be at rest: spare ones, or done with their task."""
    duty = gpus.now("duty_cycle_ratio", now)[: len(gpus.entities)]
    most = np.full(int(gpus.machine.max(initial=0)) + 1, np.nan)
    np.fmax.at(most, gpus.machine[: len(duty)], duty)
    return frozenset(gpus.entities[at][0] for at in np.flatnonzero(most[gpus.machine[: len(duty)]] < BUSY))


def less_by_name(board: StateTable, value: Floats) -> Bools:
    """Less than the ports of the same name; but names may be dealt out differently, so the machine must lack it too."""
    mine = board.task != NO_TASK
    size = int(board.machine.max(initial=0)) + 1
    total: Floats = np.bincount(board.machine[mine], np.nan_to_num(value[mine]), size).astype(np.float64)
    team = np.full(len(total), NO_TASK, np.int64)
    team[board.machine[mine]] = board.task[mine]
    odd = lacks(value, board.name)
    return odd & lacks(total, team)[board.machine] if odd.any() else odd


def lacks(value: Floats, group: Ints) -> Bools:
    """[entity]: whether its value is less than the one on which its group agrees; false where nobody knows."""
    known = value[~np.isnan(value) & (group >= 0)]
    if not len(known) or known.min() == known.max():  # as it nearly always is, and told sooner
        return np.zeros(len(value), bool)
    usual = agreed(value, group)
    found: Bools = value < LESS * usual
    return found


def agreed(value: Floats, group: Ints) -> Floats:
    """[entity]: the commonest value of its group, where enough of them have it; else NaN."""
    out = np.full(len(value), np.nan)
    known = np.flatnonzero(~np.isnan(value) & (group >= 0))
    if not len(known):
        return out
    worth, code = np.unique(value[known], return_inverse=True)
    pair, votes = np.unique(group[known] * len(worth) + code, return_counts=True)
    whose = pair // len(worth)
    order = np.lexsort((votes, whose))
    first = int(group.max()) + 1
    best, most = np.full(first, np.nan), np.zeros(first, np.int64)
    best[whose[order]], most[whose[order]] = worth[pair[order] % len(worth)], votes[order]  # the last one stays
    all_of = np.bincount(group[known], minlength=first)
    best[(most < AGREE) | (most < SHARE * all_of)] = np.nan
    out[known] = best[group[known]]
    return out


_FLAPS = "has a link that flaps: down twice within five minutes"
_STILL = "has had no traffic for two minutes while its peers have"


def _rules(table: str, *rows: tuple[str, Test, float, float, Level, float, str, bool]) -> tuple[Rule, ...]:
    return tuple(Rule(table, *row) for row in rows)


# column, test, seconds it must last, seconds it must be over, level, weight, words, only while few show it
RULES: dict[str, tuple[Rule, ...]] = {
    "gpu": _rules(
        "gpu",
        ("remap_failed", marked, 0, 0, "crit", 2.0, "could not remap a faulty row of its memory: replace it", False),
        ("ecc_uncorrected_total", marked, 0, 0, "crit", 2.0, "had {more} memory errors that ECC could not mend", False),
        ("recovery_action", marked, 0, 0, "crit", 2.0, "asks for recovery: {action}", False),
        ("pcie_width", less, 10, 30, "crit", 2.0, "has {value} PCIe lanes where its peers have {usual}", True),
        (
            "pcie_generation",
            less_under_load,
            15,
            60,
            "crit",
            2.0,
            "runs PCIe generation {value} under load, its peers {usual}",
            True,
        ),
        ("nvlink_links_up", less, 10, 30, "crit", 2.0, "has {value} NVLinks up where its peers have {usual}", True),
        ("throttle_reasons", slowed, 10, 60, "warn", 1.0, "is slowed down by its own protection: {slowdown}", False),
    ),
    "rdma": _rules(
        "rdma",
        ("link_up", down, 5, 30, "crit", 2.0, "has its link down", True),
        ("link_up", repeats, 0, 600, "crit", 2.0, _FLAPS, True),
        ("link_downed_total", repeats, 0, 600, "crit", 2.0, _FLAPS, True),
        (
            "rate_bits_per_second",
            slower_port,
            5,
            30,
            "crit",
            2.0,
            "runs at {value} where its peers run at {usual}",
            True,
        ),
        ("transmit_bytes_total", quiet, 90, 10, "crit", 1.0, _STILL, True),
    ),
    "source": _rules(
        "source",
        ("success", failing, 60, 30, "note", 1.0, "cannot be read by its source {name}, where its peers can", True),
    ),
}
_ENERGY = "energy_joules_total"
_BESIDE = {"gpu": ("duty_cycle_ratio", "power_watts", _ENERGY), "rdma": ("receive_bytes_total",)}
"""Columns that the tests look at besides."""
_ONLY = {"source": ("gpu", "rdma")}
"""Of these tables only some keys speak of hardware."""
_ACTIONS = ("none", "reset the GPU", "reboot the machine", "drain peer-to-peer traffic", "drain, then reset the GPU")


def boards() -> dict[str, StateTable]:
    """By table, a board for each that has rules. The driver counts energy since it was loaded or the GPU was reset."""
    found = {}
    for table, rules in RULES.items():
        columns = tuple(dict.fromkeys([*(rule.column for rule in rules), *_BESIDE.get(table, ())]))
        begins = _ENERGY if _ENERGY in columns else ""
        found[table] = StateTable(table, columns, ("link_up", _ENERGY), begins, _ONLY.get(table))
    return found


def in_words(rule: Rule, board: StateTable, entity: int, now: int) -> str:
    """What a rule says of an entity, with the readings of both sides."""
    at = board.row(rule.column)
    value, base = board.value[at, entity], board.base[at, entity]
    group = board.name if rule.table == "rdma" else board.task
    usual = agreed(board.now(rule.column, now), group)[entity] if "{usual}" in rule.words else np.nan
    metric = METRICS.get(f"{rule.table}.{rule.column}")
    sides = [quantity(v, metric) if metric and metric.unit == "bits per second" else f"{v:g}" for v in (value, usual)]
    action = _ACTIONS[int(value)] if 0 <= value < len(_ACTIONS) else f"action {value:g}"
    hot = rule.test is slowed and bool(int(value) & _THERMAL)
    who = subject(*board.entities[entity])
    return f"{who} " + rule.words.format(
        value=sides[0],
        usual=sides[1],
        more=f"{value - base:g}",
        action=action,
        name=board.names[entity],
        slowdown="too hot" if hot else "power brake",
    )
