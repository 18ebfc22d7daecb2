"""Thresholds that the fleet teaches while it runs: from excursions in health to what makes a verdict."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from detector.calibration import Calibration, fingerprint, load
from detector.config import Config
from detector.methods.peers.state import Limits, Panel
from detector.stats.arrays import Floats
from detector.thresholds.fit import Learned, fit
from detector.thresholds.watch import QUARANTINE_NS, PanelWatch, Spans, streams_of
from detector.topology.tasks import Tasks
from store.schema.time import LATEST, SECOND

log = logging.getLogger(__name__)

_OPEN_NS = 10 * SECOND
"""An incident that was there so short a time ago is open."""
FIT_NS = 60 * SECOND
"""How often thresholds are fitted again."""


@dataclass(slots=True)
class Thresholds:
    """The memory of it, by table."""

    tables: dict[str, PanelWatch] = field(default_factory=dict)
    learned: dict[str, Learned] = field(default_factory=dict)
    fitted: int = 0
    """When they were fitted last, Unix ns."""
    settings: str = ""
    """Of the detector, those on which evidence depends, when this was learned."""

    def note(self, now: int, panels: Mapping[str, Panel], tasks: Tasks, spans: Spans, config: Config) -> None:
        """Take in a step of the peers at `now` (Unix ns), and set their limits when it is time.

        `spans` are the incidents of the last minutes.
        """
        harmed = frozenset(task for (task, _), times in spans.items() if times and times[-1][1] >= now - _OPEN_NS)
        for name, panel in panels.items():
            self.tables.setdefault(name, PanelWatch()).note(now, panel, harmed)
        if not 0 <= now - self.fitted < FIT_NS:
            self._begin_again_if_set_otherwise(now, config)
            self.fitted = now
            self._teach(now - QUARANTINE_NS, tasks, spans)
            self.learned = fit({name: one.history for name, one in self.tables.items()}, rate_of(config))
            self._apply(panels, config)

    def _apply(self, panels: Mapping[str, Panel], config: Config) -> None:
        """Give the panels their limits, but for tables with a threshold by hand."""
        by_hand = config.threshold_multipliers
        for name, panel in panels.items():
            if name in self.learned and name in self.tables and not {name, "*"} & by_hand.keys():
                panel.limits = _limits(self.learned[name], self.tables[name], panel)

    def pardon(self, machine: str, since: int, now: int) -> None:
        """The operator says at `now` that what a machine showed since then (Unix ns) was no fault."""
        for one in self.tables.values():
            one.pardon(machine, since, now)

    def rested(self) -> Thresholds:
        """What was learned, without what was under way: for a detector that begins again."""
        tables = {name: PanelWatch(one.history) for name, one in self.tables.items()}
        return Thresholds(tables, settings=self.settings)

    def finish(self, tasks: Tasks) -> None:
        """Remember what waits and what is under way: no more readings come."""
        for one in self.tables.values():
            one.finish()
        self._teach(LATEST, tasks, {})

    def _begin_again_if_set_otherwise(self, now: int, config: Config) -> None:
        """Evidence under other settings is of another size, so what was learned of it says nothing."""
        settings = fingerprint(config)
        if self.settings and settings != self.settings:
            log.warning("settings of the detector have changed: thresholds are learned from the beginning")
            self.tables, self.learned = {}, {}
        if settings != self.settings and config.calibration:
            self._seed(now, load(Path(config.calibration)))
        self.settings = settings

    def _seed(self, now: int, calibration: Calibration) -> None:
        """Begin with what was learned from recordings."""
        for table, streams in calibration.tables.items():
            watch = self.tables.setdefault(table, PanelWatch())
            for name, stream in streams.items():
                watch.history.seed(now, name, stream)

    def _teach(self, before: int, tasks: Tasks, spans: Spans) -> None:
        for name, one in self.tables.items():
            size = len(one.history.streams)
            limits = self.learned[name].multiplier if name in self.learned else np.ones(size)
            limits = np.append(limits, np.ones(max(0, size - len(limits))))
            names = {one.history.names[at] for at in one.waiting.machine.tolist()}
            one.teach(before, {name: tasks.task_of(name) for name in names}, spans, limits)


def rate_of(config: Config) -> float:
    """False pages that the operator allows in a machine-hour."""
    return config.false_pages_per_1000_machine_hours / 1000


def _limits(learned: Learned, watch: PanelWatch, panel: Panel) -> Limits:
    """Thresholds of a panel; the last column is that of machines not named."""
    streams = watch.history.places(streams_of(panel))
    table: Floats = np.repeat(_padded(learned.multiplier, len(watch.history.streams))[:, None], len(watch.names) + 1, 1)
    place = {name: at for at, name in enumerate(watch.names)}
    for stream, (machines, limits) in learned.own.items():
        for machine, limit in zip(machines.tolist(), limits.tolist(), strict=True):
            if (at := place.get(watch.history.names[machine])) is not None:
                table[stream, at] = limit
    metrics = len(panel.window.metrics)
    return Limits(*(part.astype(np.float32) for part in np.split(table[streams], [metrics, metrics + 1])))


def _padded(multiplier: Floats, size: int) -> Floats:
    return np.append(multiplier, np.ones(max(0, size - len(multiplier))))
