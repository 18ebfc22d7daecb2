"""Stacks of all training processes in rounds, where they are slow rather than stalled: as a zoom asks for them."""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

from agent.probes.training_processes import TrainingProcesses
from agent.stacks.py_spy import spy_path
from agent.system.child_process import ChildTask
from store.schema.sample import Sample

MOST = 5
"""Rounds of one order (ByteRobust, SOSP'25)."""
HERTZ = 0.1
"""No more often than this."""
_AT_ONCE = 64


class StackRounds:
    """Each reading begins a round and returns the stacks of the one before."""

    def __init__(self, training: TrainingProcesses) -> None:
        self._training = training
        self._child = ChildTask("agent.stacks.worker")
        self._gpus: dict[int, str] = {}
        self._round = 0

    def read(self, now: int) -> list[Sample]:
        """A row a process of the round before; rows that share a GPU must not share a time."""
        answers = self._child.poll()
        rows = [Sample("stack", self._row(answer), now + at) for at, answer in enumerate(answers)]
        living = sorted(self._training.living(now).values(), key=lambda trainer: trainer.process.pid)[:_AT_ONCE]
        if self._child.ready and self._round < MOST and living:
            self._round += 1
            self._gpus = {trainer.process.pid: trainer.gpu for trainer in living}
            self._child.ask({"spy": spy_path(), "processes": [astuple(trainer.process) for trainer in living]})
        return rows

    def close(self) -> None:
        """End the child."""
        self._child.close()

    def _row(self, answer: dict[str, Any]) -> dict[str, Any]:
        return {"gpu": self._gpus.get(answer["pid"], ""), **answer, "still_seconds": 0.0, "round": float(self._round)}
