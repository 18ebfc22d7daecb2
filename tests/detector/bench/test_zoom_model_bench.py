"""Zooming where reconstruction from peers is expected to fail, against a fixed bar, on two faults at once."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from detector.config import Config
from detector.engine.pipeline import Detector, walk
from detector.engine.zoom_model import FEATURES, HORIZON_S, WEIGHTS, ZoomModel, errors_ahead, fit
from detector.engine.zoom_requests import SUSPECT, Scores, ZoomPlanner
from detector.evaluation.labels import Fault, read_labels
from detector.methods.peers.state import NO_TASK
from detector.stats.arrays import Floats, Ints
from emulator.simulation.faults import FAIL_SLOW
from emulator.simulation.simulate import Plan, pieces
from store.recording import Recording
from store.schema.contract import ReadableStore
from store.schema.time import SECOND

pytestmark = [pytest.mark.bench, pytest.mark.timeout(3600)]

BAR = 0.3
"""The fixed bar: evidence in multiples of the alarm threshold."""
SEEDS = range(500, 508)
SET = os.environ.get("PEERWATCH_ZOOM_SET", "")
"""Folder of recordings of another generator, which the weights that are shipped are tried on."""


Step = dict[str, tuple[list[tuple[str, str]], Ints, Floats, int]]
"""By table task and machine of each entity that deviates, its number, [entity, feature], and how many there are."""


def replayed(store: ReadableStore) -> list[tuple[int, Step]]:
    """The features at each step of a recording."""
    detector, model, found = Detector(), ZoomModel(), []
    for now, rows in walk(store):
        detector.step(now, rows)
        step: Step = {}
        for table, panel in (detector.state.panels() or {}).items():
            entities, features = model.features(table, panel)
            judged = panel.group[entities] != NO_TASK
            names = [(panel.tasks[panel.task_index[at]], panel.window.entities[at][0]) for at in entities[judged]]
            step[table] = names, entities[judged], features[judged], len(panel.group)
        found.append((now, step))
    return found


def samples_of(steps: list[tuple[int, Step]]) -> tuple[Floats, Floats]:
    """[sample, feature] and the error after each, of every third step; entities that do not deviate are zero."""
    found, horizon = [], round(HORIZON_S)
    for table in sorted({table for _, step in steps for table in step}):
        mine = [step[table] for _, step in steps if table in step]
        every = np.zeros((len(mine), max(size for *_, size in mine), len(FEATURES)))
        for at, (_, entities, features, _) in enumerate(mine):
            every[at, entities] = features
        every[:, :, -1] = 1.0
        ahead = errors_ahead(every[:, :, FEATURES.index("deviation")], horizon)
        found.append((every[60:-horizon:3].reshape(-1, len(FEATURES)), ahead[60:-horizon:3].reshape(-1)))
    return np.concatenate([one for one, _ in found]), np.concatenate([one for _, one in found])


def scored(weights: Floats, least: float) -> Callable[[Any], Scores]:
    """Machines with a weighted sum of features of `least` and more."""

    def score(step: Step) -> Scores:
        found: Scores = {}
        for table, (names, _, features, _) in step.items():
            for name, value in zip(names, (features @ weights).tolist(), strict=True):
                if value >= least:
                    by_table = found.setdefault(name, {})
                    by_table[table] = max(value, by_table.get(table, 0.0))
        return found

    return score


def asked(steps: list[tuple[int, Step]], score: Callable[[Any], Scores]) -> list[tuple[int, str]]:
    """Time and machine of each zoom."""
    planner = ZoomPlanner(Config(), score=score)
    tables: Any = steps
    return [(now, machine) for now, step in tables for machine, _ in planner.orders(now, step)]


@dataclass
class Tally:
    """What one way of asking did over all recordings."""

    delays: list[float | None] = field(default_factory=list)
    asked: int = 0
    elsewhere: int = 0

    def add(self, orders: list[tuple[int, str]], faults: tuple[Fault, ...]) -> None:
        """Count the zooms of a recording; one within a minute of a fault's end is still of it."""
        for fault in faults:
            mine = [at for at, machine in orders if machine == fault.machine and fault.start <= at < fault.end]
            self.delays.append((mine[0] - fault.start) / SECOND if mine else None)
        late = 60 * SECOND
        hit = [any(m == f.machine and f.start <= at < f.end + late for f in faults) for at, m in orders]
        self.asked, self.elsewhere = self.asked + len(orders), self.elsewhere + hit.count(False)

    def __str__(self) -> str:
        known = [delay for delay in self.delays if delay is not None]
        return (
            f"{len(known)} of {len(self.delays)} faulty machines zoomed, {np.mean(known or [np.nan]):.0f} s after the "
            f"onset (mean); {self.elsewhere} of {self.asked} zooms elsewhere"
        )


def plan(seed: int) -> Plan:
    """Two faults at once, or none in one of four, among what is harmless."""
    chance = np.random.default_rng(seed)
    kinds = "none" if seed % 4 == 3 else ",".join(map(str, chance.choice(FAIL_SLOW, 2, replace=False)))
    return Plan(int(chance.choice([8, 12, 16])), 4, 10.0, 1.0, kinds, seed, disturbances="some")


def simulated(memory: Any, seed: int) -> tuple[ReadableStore, tuple[Fault, ...]]:
    """A recording in memory, and its faults."""
    labels, parts = pieces(plan(seed))
    tables: dict[str, list[pa.Table]] = {}
    for part in parts:
        for name, columns in part.items():
            tables.setdefault(name, []).append(pa.table(columns))
    store = memory({name: pa.concat_tables(found) for name, found in tables.items()})
    return store, tuple(Fault(**fault) for fault in labels["faults"])


def test_learned_place_against_a_fixed_bar(memory: Any) -> None:
    """The bench prints what the fixed bar and the learned place do, with weights fitted on all other recordings.

    The learned place must zoom no fewer faulty machines, sooner, and ask for hardly more zooms.
    """
    folders = [*map(Path, sorted(Path(SET).iterdir()))] if SET else []
    stores = [(Recording(one), read_labels(one).faults) for one in folders] or [simulated(memory, at) for at in SEEDS]
    runs = [(replayed(store), faults) for store, faults in stores]
    pairs = [] if SET else [samples_of(steps) for steps, _ in runs]
    fixed, learned = Tally(), Tally()
    evidence = np.eye(len(FEATURES))[FEATURES.index("evidence")]
    for at, (steps, faults) in enumerate(runs):
        weights = WEIGHTS if SET else fitted(pairs[:at] + pairs[at + 1 :])
        fixed.add(asked(steps, scored(evidence, BAR)), faults)
        learned.add(asked(steps, scored(weights, SUSPECT)), faults)
    print(f"\nfixed bar, evidence {BAR}: {fixed}\nlearned, expected error {SUSPECT}: {learned}")
    if pairs:
        print(f"weights of all: {dict(zip(FEATURES, fitted(pairs).round(3).tolist(), strict=True))}")
    assert sum(one is None for one in learned.delays) <= sum(one is None for one in fixed.delays)
    assert np.mean([one for one in learned.delays if one]) < np.mean([one for one in fixed.delays if one])
    assert learned.asked <= 1.1 * fixed.asked


def fitted(pairs: list[tuple[Floats, Floats]]) -> Floats:
    """The weights for the samples of some recordings."""
    samples, errors = (np.concatenate(side) for side in zip(*pairs, strict=True))
    return fit(samples, errors)
