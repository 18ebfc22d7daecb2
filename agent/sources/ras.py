"""NCCL's own status (RAS), as a second source on a hang. Off unless `agent.sources` lists `ras`.

NCCL gathers one status from all ranks of a task, so only the machine of its rank 0 asks for it, once a stall.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import astuple
from typing import Any

from agent.context import Context
from agent.nccl.stall import StallDetectors
from agent.process.procfs import Processes
from agent.system.child_process import ChildTask
from store.schema.sample import Sample

_RANKS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
"""Where launchers say which rank of the task a process is."""
_REST_S = 60.0
"""Between two questions."""


class Ras:
    """A row a communicator, or one that says why there is none."""

    def __init__(self, stalls: StallDetectors, processes: Processes, least_s: float) -> None:
        self._stalls, self._processes, self._least_s = stalls, processes, least_s
        self._child = ChildTask("agent.nccl.ras.worker", 30.0)
        self._rested, self._answered = float("-inf"), False

    def read(self, now: int) -> list[Sample]:
        """The answers since the last reading; then rank 0 of a stalled task is asked."""
        clock = time.monotonic()
        self._stalls.update(now, clock)
        rows = [Sample("ras", {"slot": str(slot), **answer}) for slot, answer in enumerate(self._answers())]
        if clock >= self._rested and self._child.ready:
            for trainer, stall in list(self._stalls.stalled(clock, self._least_s)):
                stall.handled = True
                if is_first(self._processes.environment(trainer.process.pid)):
                    self._rested, self._answered = clock + _REST_S, False
                    self._child.ask({"process": astuple(trainer.process)})
                    break
        return rows

    def _answers(self) -> list[dict[str, Any]]:
        """What has come since the last call; that nothing ever came is an answer too."""
        asked = self._child.under_way
        found = self._child.poll()
        self._answered |= bool(found)
        if asked and not self._child.under_way and not self._answered:
            found = [{"error": "asking was cut off"}]
        return found

    def close(self) -> None:
        """End the child."""
        self._child.close()


def is_first(environment: Mapping[str, str]) -> bool:
    """Whether a launcher called this process rank 0 of its task."""
    ranks = [environment[name] for name in _RANKS if name in environment]
    return bool(ranks) and ranks[0].strip() == "0"


def open_source(context: Context) -> Ras:
    """The source, ready to read. Raises SourceUnavailableError where probes cannot be had."""
    kernel, _ = context.probes()
    stalls = StallDetectors(context.training, kernel.maps["processes"], kernel.maps["logs"])
    return Ras(stalls, context.processes, context.config.ras_after_seconds)
