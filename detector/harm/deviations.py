"""Deviations of the last minutes, sparse: which readings differed from their peers', when and how far."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from detector.harm.share import Share
from detector.methods.peers.state import Panel
from detector.model.verdict import Verdict
from detector.stats.arrays import Bools, Floats, Ints, Singles
from store.schema.time import SECOND

LEAST, DEVIATES = 0.5, 0.8
"""In multiples of the smallest significant one: smaller ones are taken for none; from here on a reading is odd."""
_LIMIT, _LIMITED = "power_limit_watts", ("gpu.power_watts", "gpu.sm_clock_hertz")
_LOWER, _EXPLAINS = 0.01, 2.0
"""The least share by which a power limit is lower, and times that share by which what follows from it may be."""
_TOGETHER_NS = 20 * SECOND
"""Deviations that begin so near to each other have one cause."""


@dataclass(slots=True)
class Deviations:
    """Of one table: one entry for each reading that deviated, in each block of time."""

    time: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    metric: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    entity: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    deviation: Singles = field(default_factory=lambda: np.zeros(0, np.float32))

    def update(self, now: int, deviation: Singles, span: int) -> None:
        """Add the signed deviations [metric, entity] at `now`; what is older than `span` (ns) is dropped."""
        recent = self.time > now - span
        metric, entity = np.nonzero(np.abs(deviation) >= LEAST)
        self.time = np.append(self.time[recent], np.full(len(metric), now))
        self.metric, self.entity = np.append(self.metric[recent], metric), np.append(self.entity[recent], entity)
        self.deviation = np.append(self.deviation[recent], deviation[metric, entity])

    def of(self, times: Ints, metric: int, entities: Ints) -> Floats:
        """[time]: the largest deviation of some entities by a metric, either way."""
        mine = (self.metric == metric) & np.isin(self.entity, entities)
        out = np.zeros(len(times))
        at = np.searchsorted(times, self.time[mine])
        known = (at < len(times)) & (times[np.minimum(at, len(times) - 1)] == self.time[mine])
        np.maximum.at(out, at[known], np.abs(self.deviation[mine][known]))
        return out

    def began(self, time: int, metric: int, near: int, least: float) -> Ints:
        """The entities that began to deviate by a metric, by `least`, within `near` (ns) of a time (Unix ns)."""
        mine = (self.metric == metric) & (np.abs(self.deviation) >= least)
        apart = self.time[mine] - time
        here, before = np.abs(apart) <= near, (apart < -near) & (apart >= -4 * near)
        return np.setdiff1d(self.entity[mine][here], self.entity[mine][before])


@dataclass(slots=True)
class Odd:
    """The deviations of all tables, and what is asked of them."""

    tables: dict[str, Deviations] = field(default_factory=dict)
    metrics: dict[str, list[str]] = field(default_factory=dict)
    """By table, the names of the rows of its deviations."""

    def update(self, now: int, panels: Mapping[str, Panel], span: int) -> None:
        """Take in how the panels stand at `now` (Unix ns); what is older than `span` (ns) is dropped."""
        for name, panel in panels.items():
            self.tables.setdefault(name, Deviations()).update(now, panel.deviation, span)
            self.metrics[name] = list(panel.window.metrics)

    def evict(self) -> None:
        """Forget all: the entities get new numbers."""
        self.tables.clear()

    def when(self, verdict: Verdict, times: Ints, panels: Mapping[str, Panel], least: float = DEVIATES) -> Bools:
        """[time]: whether the machine, or its device, deviated by the verdict's metric then, so far at `least`."""
        if (found := _read(verdict, panels)) is None:
            return times > verdict.since
        panel, row = found
        return self.tables[panel.window.table].of(times, row, _entities(verdict, panel)) >= least

    def any_of(self, metrics: Iterable[str], verdict: Verdict, times: Ints, panels: Mapping[str, Panel]) -> Bools:
        """[time]: the same of any of these metrics that is read."""
        found = np.zeros(len(times), bool)
        for table, _, metric in (one.partition(".") for one in metrics):
            if metric in self.metrics.get(table, []):
                found |= self.when(replace(verdict, metric=f"{table}.{metric}"), times, panels)
        return found

    def is_more(self, verdict: Verdict, panels: Mapping[str, Panel]) -> bool:
        """Whether the machine, or its device, reads more than its peers at this moment."""
        if (found := _read(verdict, panels)) is None:
            return False
        panel, row = found
        mine = panel.deviation[row, _entities(verdict, panel)]
        return bool(np.nanmax(mine, initial=0.0) > -np.nanmin(mine, initial=0.0))

    def others_too(self, verdict: Verdict, panels: Mapping[str, Panel]) -> bool:
        """Whether another machine of the task reads more than its peers as well, and at least half as far."""
        if (found := _read(verdict, panels)) is None or verdict.task not in found[0].tasks:
            return False
        panel, row = found
        deviation, mine = panel.deviation[row], _entities(verdict, panel)
        others = panel.task_index[: len(deviation)] == panel.tasks.index(verdict.task)
        others &= panel.machine[: len(deviation)] != panel.machine[mine[0]]
        least = max(1.0, float(np.nanmax(deviation[mine], initial=0.0)) / 2)
        return bool((deviation[others] >= least).any())

    def carries_more(self, verdict: Verdict, panels: Mapping[str, Panel]) -> bool:
        """Whether the machine, or its device, reads more than its peers at this moment, whatever is usual."""
        if (found := _read(verdict, panels)) is None:
            return False
        panel, row = found
        return bool((_apart(panel, row)[_entities(verdict, panel)] > 0).any())

    def is_one_that_does_less(self, verdict: Verdict, panels: Mapping[str, Panel]) -> bool:
        """Of a small difference: whether one device reads less, of a machine with three or more.

        Where most of these are off the machine is named.
        """
        if verdict.device is None or (found := _read(verdict, panels)) is None:
            return False
        panel, row = found
        (mine,) = _entities(verdict, panel).tolist() or [None]
        several = mine is not None and (panel.machine == panel.machine[mine]).sum() > 2
        return bool(several and panel.lasting.share(row, mine)[0] < 0)

    def is_limited(self, verdict: Verdict, panels: Mapping[str, Panel]) -> bool:
        """Whether a device draws less, or clocks lower, as its power limit always was lower than that of its peers."""
        found = _read(verdict, panels)
        limit = found[0].row_of(_LIMIT) if found and verdict.metric in _LIMITED else None
        if found is None or limit is None or not len(mine := _entities(verdict, found[0])):
            return False
        panel, row = found
        away = panel.baseline.offset[limit, mine], _apart(panel, row)[mine]
        with np.errstate(divide="ignore", invalid="ignore"):
            lower, less = (off / (off - panel.values[at, mine]) for at, off in zip((limit, row), away, strict=True))
        return bool((lower > _LOWER).all() and (less > 0).all() and (less < _EXPLAINS * lower).all())

    def is_like_peers(self, verdict: Verdict, panels: Mapping[str, Panel]) -> bool:
        """Whether the machine, or its device, reads what its peers do, and deviates only from what it read before."""
        if (found := _read(verdict, panels)) is None or not len(mine := _entities(verdict, found[0])):
            return False
        panel, row = found
        at = mine[np.argmax(np.abs(np.nan_to_num(panel.deviation[row, mine])))]
        usual = float(panel.baseline.offset[row, at])
        return abs(float(_apart(panel, row)[at])) < abs(usual) / 2 and usual * float(panel.deviation[row, at]) < 0

    def began_elsewhere(self, verdict: Verdict, share: Share) -> bool:
        """Whether another machine began to deviate by the same reading at the same time."""
        table, _, metric = verdict.metric.partition(".")
        at = share.machines.get(verdict.machine)
        if table not in self.tables or at is None or metric not in self.metrics.get(table, []):
            return False
        row = self.metrics[table].index(metric)
        began = self.tables[table].began(verdict.since, row, _TOGETHER_NS, DEVIATES)
        return bool((share.owners[table][began] != at).any())


def _read(verdict: Verdict, panels: Mapping[str, Panel]) -> tuple[Panel, int] | None:
    """The panel of the verdict's reading and its row there; None: the last step had none."""
    table, _, metric = verdict.metric.partition(".")
    panel = panels.get(table)
    row = panel.row_of(metric) if panel is not None else None
    return None if panel is None or row is None else (panel, row)


def _apart(panel: Panel, row: int) -> Singles:
    """[entity]: how far it reads from its peers' median, whatever is usual."""
    values = panel.values[row : row + 1]
    apart: Singles = (values - panel.groups.each(panel.groups.middle(values)))[0]
    return apart


def _entities(verdict: Verdict, panel: Panel) -> Ints:
    """The places of the verdict's device, or of all devices of its machine."""
    named = enumerate(panel.window.entities)
    return np.array(
        [at for at, (name, device) in named if name == verdict.machine and verdict.device in (None, device)], np.int64
    )
