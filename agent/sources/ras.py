"""NCCL's own status (RAS) as a second witness of a standstill. Off unless `ras` stands in `agent.sources`.

One status is gathered from all ranks of a task, so the machine of its rank 0 alone asks for it, once a standstill.
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

    def __init__(self, paces: StallDetectors, processes: Processes, least_s: float) -> None:
        self._paces, self._processes, self._least_s = paces, processes, least_s
        self._errand = ChildTask("agent.nccl.ras_worker", 30.0)
        self._rested, self._told = float("-inf"), False

    def read(self, now: int) -> list[Sample]:
        """What was answered since the last reading; then rank 0 of a task that stands still is asked."""
        clock = time.monotonic()
        self._paces.look(now, clock)
        rows = [Sample("ras", {"slot": str(slot), **answer}) for slot, answer in enumerate(self._answers())]
        if clock >= self._rested and self._errand.ready:
            for trainee, pace in list(self._paces.standing(clock, self._least_s)):
                pace.taken = True
                if is_first(self._processes.environment(trainee.process.pid)):
                    self._rested, self._told = clock + _REST_S, False
                    self._errand.ask({"process": astuple(trainee.process)})
                    break
        return rows

    def _answers(self) -> list[dict[str, Any]]:
        """What has come since the last call; that nothing ever came is an answer too."""
        asked = self._errand.under_way
        found = self._errand.poll()
        self._told |= bool(found)
        if asked and not self._errand.under_way and not self._told:
            found = [{"error": "asking was cut off"}]
        return found

    def close(self) -> None:
        """End the child."""
        self._errand.close()


def is_first(environment: Mapping[str, str]) -> bool:
    """Whether a launcher called this process rank 0 of its task."""
    told = [environment[name] for name in _RANKS if name in environment]
    return bool(told) and told[0].strip() == "0"


def open_source(context: Context) -> Ras:
    """The source, ready to read. Raises NothingThereError where probes cannot be had."""
    kernel, _ = context.probes()
    paces = StallDetectors(context.training, kernel.maps["processes"], kernel.maps["logs"])
    return Ras(paces, context.processes, context.config.ras_after_seconds)
