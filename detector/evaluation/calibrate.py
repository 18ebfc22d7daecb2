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
from detector.methods.peers.method import Peers
from detector.methods.peers.state import Panel
from detector.methods.progress.method import Progress
from detector.stats.arrays import Floats, Ints
from store.schema.contract import ReadableStore
from store.schema.time import SECOND

PROGRESS = "progress"


@dataclass(slots=True)
class ExcursionPeaks:
    """Peaks of one table or method in multiples of the threshold of a verdict, and the machine-hours behind them."""

    hours: float = 0.0
    peaks: list[Floats] = field(default_factory=list)
    high: Floats = field(default_factory=lambda: np.zeros(0))
    """[machine]: how high the excursion that is under way has come."""

    def note(self, machine: Ints, weight: Floats, machines: int) -> None:
        """Note the evidence of this step: `weight` [cell] against `machine` [cell]; other machines have none."""
        if machines < len(self.high):  # some went for good, and the others have new numbers
            self.peaks.append(self.high[self.high > 0])
            self.high = np.zeros(0)
        now = np.zeros(machines)
        np.maximum.at(now, machine, weight)
        before = np.append(self.high, np.zeros(machines - len(self.high)))
        over = (now <= 0) & (before > 0)
        if over.any():
            self.peaks.append(before[over])
        self.high = np.where(over, 0.0, np.maximum(before, now))

    def found(self) -> Floats:
        """[excursion]: all peaks, those of excursions under way too."""
        return np.concatenate([*self.peaks, self.high[self.high > 0]])


def follow(store: ReadableStore, config: Config, name: str, tell: Callable[[int], None]) -> dict[str, ExcursionPeaks]:
    """The excursions of a healthy recording by table or method; `tell` hears how far it has come (Unix ns).

    Raises CalibrationError where the detector raises a critical verdict: then the recording was not healthy.
    """
    # The threshold is as high as can be: evidence that has raised a verdict would count for less the next time.
    detector = Detector(replace(config, calibration="", threshold_multipliers={"*": MOST}))
    found: dict[str, ExcursionPeaks] = {}
    before, step = 0, 0
    for now, rows in walk(store):
        for verdict in detector.step(now, rows):
            if verdict.level == "crit":
                raise CalibrationError(f"{name} is not healthy, leave it out: {verdict.message}")
        # Where nothing was read there is no health to be counted, however long that was.
        step = min(step or now - before, now - before) if before else 0
        before, seconds = now, step / SECOND if rows else 0.0
        for method in detector.state.methods:
            if isinstance(method, Peers):
                for table, panel in method.panels.items():
                    _note(found.setdefault(table, ExcursionPeaks()), panel, seconds)
            elif isinstance(method, Progress):
                _note_progress(found.setdefault(PROGRESS, ExcursionPeaks()), method, seconds)
        tell(now)
    return {what: one for what, one in found.items() if one.hours > 0}


def _note(mine: ExcursionPeaks, panel: Panel, seconds: float) -> None:
    machines = int(panel.machine.max(initial=-1)) + 1
    count = min(len(panel.machine), panel.norm.bound.shape[1])
    judged = ~np.isnan(panel.norm.bound[:, :count]).all(0) & (panel.group[:count] >= 0)
    mine.hours += len(np.unique(panel.machine[:count][judged])) * seconds / 3600
    entity = np.append(panel.cells.entity, panel.fusion.cells.entity)
    mine.note(panel.machine[entity], MOST * np.append(panel.weight, panel.fusion.weight), machines)


def _note_progress(mine: ExcursionPeaks, method: Progress, seconds: float) -> None:
    weight, machine = method.stragglers.evidence(method.config.straggler), method.ranks.machine
    count = min(len(weight), len(machine))
    if not count or not (known := machine[:count] >= 0).any():
        return
    machines = int(machine[:count].max()) + 1
    mine.hours += len(np.unique(machine[:count][known])) * seconds / 3600
    mine.note(machine[:count][known], weight[:count][known], machines)


def study(folder: Path, config: Config, tell: Callable[[int], None] = lambda _: None) -> dict[str, ExcursionPeaks]:
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
    if not found:
        raise CalibrationError(f"{folder} has no machine with peers to compare with: see peerwatch replay {folder}")
    return found


def calibrate(studied: Iterable[dict[str, ExcursionPeaks]], budget: Budget, config: Config) -> Calibration:
    """What all recordings together say. Raises CalibrationError where they are too short for the budget."""
    all_ = list(studied)
    names = sorted({name for one in all_ for name in one})
    parts = {name: [one[name] for one in all_ if name in one] for name in names}
    hours = {name: sum(one.hours for one in mine) for name, mine in parts.items()}
    most = max(hours.values())
    if budget.rate * most * REACH < 1:
        raise CalibrationError(
            f"one false alarm in {1 / budget.rate:,.0f} machine-hours cannot be distinguished from {most:,.1f}: "
            f"record {1 / budget.rate / REACH:,.0f} machine-hours of health, or allow one in {REACH * most:,.0f}"
        )
    tails = {}
    for name, mine in parts.items():
        try:
            # Each table has an equal share of the budget.
            tails[name] = tail_of(np.concatenate([one.found() for one in mine]), hours[name], budget.rate / len(parts))
        except CalibrationError as error:
            raise CalibrationError(f"{name} cannot stay within the budget: {error}") from error
    return Calibration(VERSION, budget, len(all_), round(most, 2), settings_of(config), tails)
