"""Evaluation: several methods over one labelled recording, step by step side by side, and what each is worth."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace as with_
from pathlib import Path

from detector.config import Config
from detector.engine.pipeline import METHODS, Detector, Method, State, judge, walk
from detector.evaluation.labels import GRACE_S, Labels, Outcome, assess
from detector.model.verdict import Verdict
from detector.topology.tasks import Tasks
from store.schema.contract import ReadableStore

OURS = "peerwatch"
BASELINES = ("minder", "median", "mahalanobis")


def methods_of(name: str) -> tuple[Callable[[Config], Method], ...]:
    """What a name stands for: `peerwatch` is all that is ours, a baseline stands alone. Raises ValueError."""
    if name == OURS:
        return METHODS
    if name == "minder":
        from detector.methods.baselines.minder import Minder

        return (Minder,)
    if name == "median":
        from detector.methods.baselines.robust_z import Median

        return (Median,)
    if name == "mahalanobis":
        from detector.methods.baselines.mahalanobis import Mahalanobis

        return (Mahalanobis,)
    raise ValueError(f"no method is called {name}; there are {', '.join((OURS, *BASELINES))}")


def detector_of(name: str, config: Config, task: str | None = None, machines: Iterable[str] | None = None) -> Detector:
    """A detector that judges by one method. Raises ValueError."""
    only = frozenset(machines) if machines else None
    methods = [method(config) for method in methods_of(name)]
    return Detector(config, State(Tasks(only=task, machines=only), methods))


def replay(store: ReadableStore, name: str, config: Config) -> Iterator[Verdict]:
    """What one method would have said over all that the store holds, in time order. Raises ValueError."""
    yield from judge(store, detector_of(name, config))


def measure(
    store: ReadableStore, labels: Labels, names: Sequence[str], recording: str, grace_s: float = GRACE_S
) -> list[Outcome]:
    """One outcome a method; all see the same rows, each in a detector of its own that never looks ahead."""
    span = store.span(0) or (0, 0)
    running = {name: _Running(name) for name in names}
    for until, rows in walk(store):
        for one in running.values():
            before = time.process_time_ns()
            one.said += one.detector.step(until, rows)
            one.detector.tell_apart(store, until)
            one.spent_ns += time.process_time_ns() - before
            one.steps += 1
    return [one.outcome(recording, labels, span, grace_s) for one in running.values()]


class _Running:
    """A method at work, its verdicts so far and what they cost."""

    def __init__(self, name: str) -> None:
        config = Config()
        self.name = name
        self.detector = Detector(config, State(methods=[method(config) for method in methods_of(name)]))
        self.said: list[Verdict] = []
        self.spent_ns = 0
        self.steps = 0

    def outcome(self, recording: str, labels: Labels, span: tuple[int, int], grace_s: float) -> Outcome:
        """What it is worth."""
        assessed = assess(recording, self.name, labels, self.said, span, grace_s)
        size = len(pickle.dumps(self.detector.state, pickle.HIGHEST_PROTOCOL))
        return with_(assessed, step_ms=self.spent_ns / 1e6 / max(self.steps, 1), state_bytes=size)


def evaluate(folder: Path, names: Sequence[str], grace_s: float = GRACE_S) -> list[Outcome]:
    """Measure one labelled recording. Raises ValueError (labels, names) and StoreError (files)."""
    from detector.evaluation.labels import read_labels
    from store.recording import Recording

    return measure(Recording(folder), read_labels(folder), names, str(folder), grace_s)
