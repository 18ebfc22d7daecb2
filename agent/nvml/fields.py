"""Which columns come from NVML's field values, and what each GPU has of them (ids and units: nvml.h, NVML_FI_*)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

ALL_LINKS = 0xFFFFFFFF
EACH_LINK = 0xFFFFFFFE
"""As a scope: the field is asked for each NVLink, and added up."""
MOST_LINKS = 18
Field = tuple[int, int]
"""Id and scope."""

# column | what a value is multiplied with | ids that are added up, with @all or @each for their scope over NVLinks
_ROWS = """
power_watts | 1e-3 | 186
power_watts | 1e-3 | 185
memory_temperature_celsius | 1 | 82
energy_joules_total | 1e-3 | 83
pcie_transmit_bytes_total | 1 | 197
pcie_receive_bytes_total | 1 | 198
nvlink_transmit_bytes_total | 1024 | 138@all
nvlink_transmit_bytes_total | 1 | 202@all
nvlink_receive_bytes_total | 1024 | 139@all
nvlink_receive_bytes_total | 1 | 204@all
ecc_corrected_total | 1 | 3
ecc_uncorrected_total | 1 | 4
throttle_power_seconds_total | 1e-9 | 74 271
throttle_thermal_seconds_total | 1e-9 | 269 270
throttle_thermal_seconds_total | 1e-9 | 75
"""
_SLOW_ROWS = """
remapped_rows | 1 | 142 143
remap_pending | 1 | 144
remap_failed | 1 | 145
recovery_action | 1 | 230
pcie_replay_total | 1 | 94
power_limit_watts | 1e-3 | 190
ecc_corrected_lifetime_total | 1 | 5
ecc_uncorrected_lifetime_total | 1 | 6
pcie_correctable_errors_total | 1 | 173
pcie_fatal_errors_total | 1 | 179 180
nvlink_crc_errors_total | 1 | 163@each
nvlink_crc_errors_total | 1 | 38 45
nvlink_crc_errors_total | 1 | 211@each
nvlink_replays_total | 1 | 161@each
nvlink_replays_total | 1 | 52
nvlink_recoveries_total | 1 | 162@each
nvlink_recoveries_total | 1 | 59
nvlink_recoveries_total | 1 | 215@each
nvlink_links_up | 1 | 165@each
"""


class Rule(NamedTuple):  # a dataclass would cost the child a megabyte of modules
    """How a column comes out of fields: their sum times a factor."""

    column: str
    scale: float
    fields: tuple[Field, ...]


def _rules(rows: str) -> tuple[Rule, ...]:
    scopes = {"": 0, "all": ALL_LINKS, "each": EACH_LINK}
    found = []
    for row in rows.strip().splitlines():
        column, scale, ids = (part.strip() for part in row.split("|"))
        pairs = [word.partition("@") for word in ids.split()]
        factor = float(scale) if "." in scale or "e" in scale else int(scale)
        found.append(Rule(column, factor, tuple((int(number), scopes[scope]) for number, _, scope in pairs)))
    return tuple(found)


FAST, SLOW = _rules(_ROWS), _rules(_SLOW_ROWS)
"""Read at every reading, and now and then. Of several rules for a column the first that the GPU has is taken."""
SLOW_COLUMNS = frozenset((*(rule.column for rule in SLOW), "pcie_generation", "pcie_width", "nvlink_errors_total"))
"""All that is read now and then."""


def spread(rules: Iterable[Rule], links: int) -> tuple[Rule, ...]:
    """The rules for a GPU of so many NVLinks: fields of each link become one field a link."""
    links = min(links, MOST_LINKS)
    found = []
    for rule in rules:
        fields = [(number, scope) for number, scope in rule.fields if scope != EACH_LINK]
        fields += [(number, link) for number, scope in rule.fields if scope == EACH_LINK for link in range(links)]
        found.append(Rule(rule.column, rule.scale, tuple(fields)))
    return tuple(found)


def choose(rules: Iterable[Rule], here: frozenset[Field]) -> tuple[Rule, ...]:
    """One rule a column, with the fields that are here alone; a sum must not change its parts from now on."""
    found: dict[str, Rule] = {}
    for rule in rules:
        fields = tuple(field for field in rule.fields if field in here)
        if fields and rule.column not in found:
            found[rule.column] = Rule(rule.column, rule.scale, fields)
    return tuple(found.values())


def places(rules: Iterable[Rule], fields: Sequence[Field]) -> list[tuple[str, float, tuple[int, ...]]]:
    """For each rule its column, its factor, and where among the fields its parts are."""
    at = {field: place for place, field in enumerate(fields)}
    return [(rule.column, rule.scale, tuple(at[field] for field in rule.fields)) for rule in rules]


def columns(plan: Iterable[tuple[str, float, tuple[int, ...]]], values: Sequence[float | None]) -> dict[str, float]:
    """The columns out of the values of fields, by `places`; a column of which any part is None is missing."""
    found = {}
    for column, scale, parts in plan:
        total: float | None = 0
        for part in parts:
            value = values[part]
            total = None if value is None or total is None else total + value
        if total is not None:
            found[column] = total * scale
    return found
