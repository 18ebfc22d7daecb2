"""Functions of all training processes of this machine in one window, as an order asks for them."""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

from agent.probes.training_processes import TrainingProcesses
from agent.stacks.py_spy import spy_path
from agent.stacks.window import HERTZ, MOST_PROCESSES
from agent.system.child_process import ChildTask
from store.schema.sample import Sample, Value
from store.schema.time import SECOND

_PATIENCE_S = 180.0


class ProfileWindow:
    """One window; its rows come when it is over."""

    def __init__(self, training: TrainingProcesses) -> None:
        self._training = training
        self._child = ChildTask("agent.stacks.window", _PATIENCE_S)
        self._window: dict[str, Value] = {}
        self._gpus: dict[int, str] = {}
        self._answers: list[dict[str, Any]] = []

    def start(self, begin: int, until: int, hertz: float, now: int) -> list[Sample]:
        """Ask for the samples between two times (Unix ns); a row at once where no process trains here."""
        seconds = (until - begin) / SECOND
        self._window = {"begin": begin, "seconds": seconds}
        living = sorted(self._training.living(now).values(), key=lambda trainer: trainer.process.pid)[:MOST_PROCESSES]
        if not living:
            none: dict[str, Value] = {
                "gpu": "",
                "processes": 0.0,
                "reader": "none",
                "error": "no training process runs here",
            }
            return [Sample("profile", {**none, **self._window}, now)]
        self._gpus = {trainer.process.pid: trainer.gpu for trainer in living}
        processes = [astuple(trainer.process) for trainer in living]
        window = {"begin": begin, "seconds": seconds, "hertz": min(hertz, HERTZ)}
        self._child.ask({"spy": spy_path(), "processes": processes, **window})
        return []

    @property
    def done(self) -> bool:
        """Whether no row is to come."""
        return not self._gpus

    def read(self, now: int) -> list[Sample]:
        """A row a process once the window is over; rows that share a GPU must not share a time."""
        self._answers += self._child.poll()
        if self.done or self._child.under_way:
            return []
        lost: list[dict[str, Any]] = [
            {"pid": pid, "reader": "none", "error": "sampling was cut off"}
            for pid in self._gpus.keys() - {answer["pid"] for answer in self._answers}
        ]
        whole = {**self._window, "processes": float(len(self._gpus))}
        rows = [
            Sample("profile", {"gpu": self._gpus.get(answer["pid"], ""), **answer, **whole}, now + at)
            for at, answer in enumerate(self._answers + lost)
        ]
        self._gpus, self._answers = {}, []
        return rows

    def close(self) -> None:
        """End the child."""
        self._child.close()
