"""Rules: which readings are hard facts. One row a rule, with its condition.

Items and intervals after ByteRobust (SOSP'25, arXiv 2509.16293, table of inspections): port flaps count when two come
within five minutes, a port that is down is given half a minute at most, zero RDMA traffic is a sign of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from detector.methods.evidence.conditions import (
    ERROR_RATES,
    THERMAL,
    below_peers,
    below_peers_under_load,
    clock_below_siblings,
    clock_far_below_peers,
    corrupts,
    down,
    errs_often,
    errs_very_often,
    failing,
    hw_throttled,
    no_traffic,
    nonzero,
    quorum_value,
    repeats,
    slower_port,
)
from detector.methods.evidence.state_table import StateTable
from detector.model.text import quantity, subject
from detector.model.verdict import Level
from detector.stats.arrays import Bools
from store.schema.catalogue import METRICS

Test = Callable[[StateTable, str, int], Bools]
Share = float | None
FEW, RACK, ANY = None, 0.75, 1.0
"""Shares of a task's machines: the setting `common_cause_share`; the machines of a rack, of which one switch has all
links and which may be most of a task; any number."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A column, the test of it, how long the test must hold before it is reported, and fail before it is over."""

    table: str
    column: str
    test: Test
    assert_after_s: float
    clear_after_s: float
    level: Level
    evidence: float
    """In multiples of what raises an alarm: above 1 it is a cause of its own; of 1 another machine's hard fact may be
    the cause; below 1 it is a note."""
    words: str
    """What is said of it; `in_words` has what can stand in braces."""
    at_most: Share
    """Of the machines of a task, so many may show it: more at once are the network, or the task itself."""


_FLAPS = "has a link that flaps: down twice within five minutes"
_CORRUPTS = "has {rate} symbol errors a second: clean or replace its cable"
_STILL = "has had no traffic for two minutes while its peers have"
Row = tuple[str, Test, float, float, Level, float, str, Share]
_SOONER = 2 / 3
"""Of the time for which errors have to last, where they are several times as many."""


def _rules(table: str, *rows: Row) -> tuple[Rule, ...]:
    return tuple(Rule(table, *row) for row in rows)


def _errors(column: str, seconds: float, words: str, at_most: Share) -> tuple[Row, Row]:
    """The rows of a counter of errors: warned of after so many seconds, and sooner if they are many."""
    said: tuple[float, Level, float, str, Share] = 120, "warn", 1.0, words, at_most
    return (column, errs_often, seconds, *said), (column, errs_very_often, _SOONER * seconds, *said)


# column, test, seconds until it is reported, seconds until it is over, level, evidence, words, how many may show it
RULES: dict[str, tuple[Rule, ...]] = {
    "gpu": _rules(
        "gpu",
        (
            "remap_failed",
            nonzero,
            0,
            0,
            "crit",
            2.0,
            "could not remap a faulty row of its memory: replace it",
            ANY,
        ),
        (
            "ecc_uncorrected_total",
            nonzero,
            0,
            0,
            "crit",
            2.0,
            "had {more} memory errors that ECC could not mend",
            ANY,
        ),
        *_errors("ecc_corrected_total", 45, "corrects {rate} memory errors a second", FEW),
        *_errors("nvlink_errors_total", 45, "has {rate} NVLink errors a second", FEW),
        *_errors("pcie_replay_total", 45, "sends {rate} PCIe packets a second again", FEW),
        ("recovery_action", nonzero, 0, 0, "crit", 2.0, "asks for recovery: {action}", ANY),
        ("pcie_width", below_peers, 10, 30, "crit", 2.0, "has {value} PCIe lanes where its peers have {usual}", FEW),
        (
            "pcie_generation",
            below_peers_under_load,
            15,
            60,
            "crit",
            2.0,
            "runs PCIe generation {value} under load, its peers {usual}",
            FEW,
        ),
        (
            "nvlink_links_up",
            below_peers,
            10,
            30,
            "crit",
            2.0,
            "has {value} NVLinks up where its peers have {usual}",
            FEW,
        ),
        (
            "sm_clock_hertz",
            clock_far_below_peers,
            30,
            60,
            "crit",
            1.0,
            "runs at {value} under load, less than 0.7 of the clock of its peers",
            FEW,
        ),
        (
            "sm_clock_hertz",
            clock_below_siblings,
            60,
            60,
            "warn",
            1.0,
            "runs at {value} under load, more than 8 % below all other GPUs of its machine",
            FEW,
        ),
        (
            "throttle_reasons",
            hw_throttled,
            10,
            60,
            "warn",
            1.0,
            "is slowed down by its own protection: {slowdown}",
            ANY,
        ),
    ),
    "rdma": _rules(
        "rdma",
        ("link_up", down, 5, 30, "crit", 2.0, "has its link down", RACK),
        ("link_up", repeats, 0, 600, "crit", 2.0, _FLAPS, FEW),
        ("link_downed_total", repeats, 0, 600, "crit", 2.0, _FLAPS, FEW),
        (
            "rate_bits_per_second",
            slower_port,
            5,
            30,
            "crit",
            2.0,
            "runs at {value} where its peers run at {usual}",
            FEW,
        ),
        *_errors("packet_sequence_errors_total", 60, "loses {rate} packets a second", ANY),
        *_errors("ack_timeouts_total", 60, "waits in vain for {rate} acknowledgements a second", ANY),
        *_errors("pfc_transmit_frames_total", 120, "pauses its senders {rate} times a second: it cannot drain", FEW),
        *_errors("symbol_errors_total", 60, _CORRUPTS, FEW),
        ("symbol_errors_total", corrupts, 30, 120, "warn", 1.0, _CORRUPTS, FEW),
        ("transmit_bytes_total", no_traffic, 90, 10, "crit", 1.0, _STILL, FEW),
    ),
    "nvswitch": _rules(
        "nvswitch",
        ("fatal_sxid", nonzero, 0, 0, "crit", 2.0, "reported the fatal SXid {value}", ANY),
        ("reset_required", nonzero, 0, 0, "crit", 2.0, "asks to be reset", ANY),
        ("fatal_errors_total", nonzero, 0, 0, "crit", 2.0, "had {more} fatal errors on its links", ANY),
    ),
    "source": _rules(
        "source",
        ("success", failing, 60, 30, "note", 0.5, "cannot be read by its source {name}, where its peers can", FEW),
    ),
}
_ENERGY = "energy_joules_total"
_BESIDE = {"gpu": ("duty_cycle_ratio", "power_watts", _ENERGY), "rdma": ("receive_bytes_total",)}
"""Columns that the tests look at besides."""
_ONLY = {"source": ("gpu", "rdma")}
"""Of these tables only some keys speak of hardware."""
_ACTIONS = ("none", "reset the GPU", "reboot the machine", "drain peer-to-peer traffic", "drain, then reset the GPU")


def state_tables() -> dict[str, StateTable]:
    """By table, the states that its rules read. The driver counts energy since it was loaded or the GPU was reset."""
    found = {}
    for table, rules in RULES.items():
        columns = tuple(dict.fromkeys([*(rule.column for rule in rules), *_BESIDE.get(table, ())]))
        begins = _ENERGY if _ENERGY in columns else ""
        rated = tuple(column for column in columns if column in ERROR_RATES)
        found[table] = StateTable(table, columns, ("link_up", _ENERGY), rated, begins, _ONLY.get(table))
    return found


def in_words(rule: Rule, states: StateTable, entity: int, now: int, alike: Counter[str]) -> str:
    """What a rule says of an entity, with the readings of both sides, and how many are `alike` by name."""
    at = states.row(rule.column)
    value, base = states.value[at, entity], states.acknowledged[at, entity]
    group = states.name if rule.table == "rdma" else states.task
    usual = quorum_value(states.now(rule.column, now), group)[entity] if "{usual}" in rule.words else np.nan
    metric = METRICS.get(f"{rule.table}.{rule.column}")
    has_unit = metric is not None and metric.unit in ("bits per second", "hertz")
    sides = [quantity(v, metric) if metric and has_unit else f"{v:g}" for v in (value, usual)]
    action = _ACTIONS[int(value)] if 0 <= value < len(_ACTIONS) else f"action {value:g}"
    hot = rule.test is hw_throttled and bool(int(value) & THERMAL)
    who = subject(*states.entities[entity])
    others = alike[states.names[entity]] - 1
    return (
        f"{who} "
        + rule.words.format(
            value=sides[0],
            usual=sides[1],
            more=f"{value - base:g}",
            rate=f"{float(f'{states.rate[at, entity]:.2g}'):,g}",
            action=action,
            name=states.names[entity],
            slowdown="too hot" if hot else "power brake",
        )
        + (f", as do {others} others of this name: look at their switch" if others > 1 else "")
    )


def err_alike(rule: Rule, states: StateTable, now: int) -> Counter[str]:
    """By name, how many ports err often together, which a switch may explain."""
    if rule.table != "rdma" or rule.column not in ERROR_RATES:
        return Counter()
    found = np.flatnonzero(rule.test(states, rule.column, now)[: len(states.names)])
    return Counter(states.names[at] for at in found.tolist())
