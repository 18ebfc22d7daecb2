"""Excursions: how far evidence against healthy machines rises before it falls back to nothing, over a recording."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from detector.calibration import MOST, REACH, VERSION, Budget, Calibration, CalibrationError, settings_of, tail_of
from detector.config import Config
from detector.engine.pipeline import Detector, walk
from detector.evaluation.labels import LabelError, read_labels
from detector.methods.contract import Excursions
from detector.stats.arrays import Floats
from detector.thresholds.history import History
from detector.thresholds.seeds import streams_of
from store.schema.contract import ReadableStore
from store.schema.time import SECOND


@dataclass(slots=True)
class ExcursionPeaks:
    """Peaks of one table or method in multiples of the threshold of a verdict, and the machine-hours behind them."""

    hours: float = 0.0
    peaks: list[Floats] = field(default_factory=list)
    high: Floats = field(default_factory=lambda: np.zeros(0))
    """[machine]: how high the excursion that is under way has come."""

    def add(self, step: Excursions, seconds: float) -> None:
        """Add the evidence of a step of this length; machines without evidence have ended their excursions."""
        self.hours += len(np.unique(step.judged)) * seconds / 3600
        if step.machines < len(self.high):  # some were evicted, and the others have new numbers
            self.peaks.append(self.high[self.high > 0])
            self.high = np.zeros(0)
        now = np.zeros(step.machines)
        np.maximum.at(now, step.machine, step.evidence)
        before = np.append(self.high, np.zeros(step.machines - len(self.high)))
        over = (now <= 0) & (before > 0)
        if over.any():
            self.peaks.append(before[over])
        self.high = np.where(over, 0.0, np.maximum(before, now))

    def found(self) -> Floats:
        """[excursion]: all peaks, those of excursions under way too."""
        return np.concatenate([*self.peaks, self.high[self.high > 0]])


@dataclass(slots=True)
class Studied:
    """What one healthy recording says: of the peers by table, of other methods by name."""

    tables: dict[str, History]
    methods: dict[str, ExcursionPeaks]


def follow(store: ReadableStore, config: Config, name: str, tell: Callable[[int], None]) -> Studied:
    """The excursions of a healthy recording; `tell` hears how far it has come (Unix ns).

    Raises CalibrationError where the detector raises a critical verdict: then the recording was not healthy.
    """
    # The threshold is as high as can be: evidence that has raised a verdict would count for less the next time.
    detector = Detector(replace(config, calibration="", threshold_multipliers={"*": MOST}))
    thresholds, methods = detector.state.thresholds, dict[str, ExcursionPeaks]()
    before, step = 0, 0
    for now, rows in walk(store):
        for verdict in detector.step(now, rows):
            if verdict.level == "crit":
                raise CalibrationError(f"{name} is not healthy, leave it out: {verdict.message}")
        # Where nothing was read there is no health to be counted, however long that was.
        step = min(step or now - before, now - before) if before else 0
        before, seconds = now, step / SECOND if rows else 0.0
        for method in detector.state.methods:
            for one in method.excursions():
                methods.setdefault(one.name, ExcursionPeaks()).add(one, seconds)
        tell(now)
    thresholds.finish(detector.state.tasks)
    tables = {table: one.history for table, one in thresholds.tables.items() if one.history.hours.any()}
    return Studied(tables, {name: one for name, one in methods.items() if one.hours > 0})


def study(folder: Path, config: Config, tell: Callable[[int], None] = lambda _: None) -> Studied:
    """The excursions of one recording. Raises CalibrationError (it is not healthy) and StoreError (files)."""
    from store.recording import Recording

    try:
        labels = read_labels(folder) if (folder / "labels.json").exists() else None
    except LabelError as error:
        raise CalibrationError(str(error)) from error
    if labels and (labels.faults or labels.unjudged):
        what = labels.faults[0].kind if labels.faults else "spans that are not to be judged"
        raise CalibrationError(f"{folder} is not healthy, leave it out: its labels tell of {what}")
    found = follow(Recording(folder), config, str(folder), tell)
    if not found.tables:
        raise CalibrationError(f"{folder} has no machine with peers to compare with: see peerwatch replay {folder}")
    return found


def calibrate(studied: Iterable[Studied], budget: Budget, config: Config) -> Calibration:
    """What all recordings together say. Raises CalibrationError where they are too short for the budget."""
    all_ = list(studied)
    hours = sum(max(float(table.hours.sum(0).max()) for table in one.tables.values()) for one in all_)
    if budget.rate * hours * REACH < 1:
        raise CalibrationError(
            f"one false alarm in {1 / budget.rate:,.0f} machine-hours cannot be distinguished from {hours:,.1f}: "
            f"record {1 / budget.rate / REACH:,.0f} machine-hours of health, or allow one in {REACH * hours:,.0f}"
        )
    tails = {}
    for name in sorted({name for one in all_ for name in one.methods}):
        mine = [one.methods[name] for one in all_ if name in one.methods]
        try:
            peaks = np.concatenate([one.found() for one in mine])
            tails[name] = tail_of(
                peaks, sum(one.hours for one in mine), budget.rate / 2
            )  # the peers have the other half
        except CalibrationError as error:
            raise CalibrationError(f"{name} cannot stay within the budget: {error}") from error
    tables = streams_of([one.tables for one in all_], budget.rate)
    return Calibration(VERSION, budget, len(all_), round(hours, 2), settings_of(config), tails, tables)
