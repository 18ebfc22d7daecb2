"""Evaluation: several methods over one labelled recording, step by step side by side, and what each is worth."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as with_
from pathlib import Path

from detector.config import Config
from detector.engine.pipeline import METHODS, Detector, State, judge, walk
from detector.evaluation.labels import Labels, read_labels
from detector.evaluation.outcome import Counting, Outcome, assess
from detector.methods.baselines.distribution import Distribution
from detector.methods.baselines.mahalanobis import Mahalanobis
from detector.methods.baselines.minder import VARIANTS, Minder
from detector.methods.baselines.minder_model import MinderModel
from detector.methods.baselines.robust_z import Median
from detector.methods.contract import Method
from detector.model.verdict import Verdict
from detector.timeseries.rows import Rows
from detector.topology.tasks import Tasks
from store.recording import Recording
from store.schema.contract import ReadableStore

OURS = "peerwatch"
BASELINES = ("minder", "median", "mahalanobis")
_OTHERS: Mapping[str, Callable[[Config], Method]] = {
    "median": Median,
    "mahalanobis": Mahalanobis,
    "distribution": Distribution,
}
NAMES = (OURS, *VARIANTS, *_OTHERS)
"""All that can be compared: ours, Minder with its ablations, and the other baselines."""


def methods_of(name: str, model: MinderModel | None = None) -> tuple[Callable[[Config], Method], ...]:
    """What a name stands for: `peerwatch` is all that is ours, a baseline stands alone. Raises ValueError."""
    if name == OURS:
        return METHODS
    if name in VARIANTS:
        return (lambda config: Minder(config, VARIANTS[name], model),)
    if name in _OTHERS:
        return (_OTHERS[name],)
    raise ValueError(f"no method is called {name}; there are {', '.join(NAMES)}")


def detector_of(name: str, config: Config, task: str | None = None, machines: Iterable[str] | None = None) -> Detector:
    """A detector that judges by one method. Raises ValueError."""
    only = frozenset(machines) if machines else None
    methods = [method(config) for method in methods_of(name)]
    return Detector(config, State(Tasks(only=task, machines=only), methods))


def replay(store: ReadableStore, name: str, config: Config) -> Iterator[Verdict]:
    """What one method would have said over all that the store holds, in time order. Raises ValueError."""
    yield from judge(store, detector_of(name, config))


@dataclass(frozen=True, slots=True)
class Run:
    """What one method said about a recording, and what that took."""

    method: str
    verdicts: tuple[Verdict, ...]
    step_ms: float
    """CPU time a step, the mean."""
    state_bytes: int
    """What the method remembers at the end, pickled."""


def runs(
    store: ReadableStore, names: Sequence[str], model: MinderModel | None = None, config: Config | None = None
) -> list[Run]:
    """One run a method; all see the same rows, each in a detector of its own that never looks ahead.

    Raises ValueError (names) and ModelError (a model of other metrics).
    """
    running = {name: _Running(name, model, config or Config()) for name in names}
    for until, rows in walk(store):
        for one in running.values():
            one.step(store, until, rows)
    return [one.run() for one in running.values()]


class _Running:
    """A method at work, its verdicts so far and what they cost."""

    def __init__(self, name: str, model: MinderModel | None, config: Config) -> None:
        self.name = name
        self.detector = Detector(config, State(methods=[method(config) for method in methods_of(name, model)]))
        self.said: list[Verdict] = []
        self.spent_ns = 0
        self.steps = 0

    def step(self, store: ReadableStore, until: int, rows: Mapping[str, Rows]) -> None:
        """Judge once; the clock counts the method and not the reading."""
        before = time.process_time_ns()
        self.said += self.detector.step(until, rows)
        self.detector.learn_independence(store, until)
        self.spent_ns += time.process_time_ns() - before
        self.steps += 1

    def run(self) -> Run:
        """What it said."""
        size = len(pickle.dumps(self.detector.state, pickle.HIGHEST_PROTOCOL))
        return Run(self.name, tuple(self.said), self.spent_ns / 1e6 / max(self.steps, 1), size)


def measure(
    store: ReadableStore,
    labels: Labels,
    names: Sequence[str],
    recording: str,
    how: Counting,
    model: MinderModel | None = None,
    config: Config | None = None,
) -> list[Outcome]:
    """One outcome a method. Raises ValueError (names) and ModelError."""
    span = store.span(0) or (0, 0)
    return [
        with_(
            assess(recording, run.method, labels, run.verdicts, span, how),
            step_ms=run.step_ms,
            state_bytes=run.state_bytes,
        )
        for run in runs(store, names, model, config)
    ]


def evaluate(
    folder: Path,
    names: Sequence[str],
    how: Counting,
    model: MinderModel | None = None,
    config: Config | None = None,
) -> list[Outcome]:
    """Measure one labelled recording. Raises ValueError (labels, names, model) and StoreError (files)."""
    return measure(Recording(folder), read_labels(folder), names, str(folder), how, model, config)
