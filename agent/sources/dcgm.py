"""Activity of the units of GPUs from DCGM, where an nv-hostengine runs: GPUs before Hopper have no other source of it.

It is read only where `sources` names it: DCGM then holds the profiling hardware, which a user's own profiler may need.
"""

from __future__ import annotations

import time

from agent.context import Context, SourceUnavailableError
from agent.nvml.dcgm.dmon import Dmon, find_program
from store.schema.sample import Sample


class Dcgm:
    """Columns of the table `gpu`; the loop puts them into the rows of NVML."""

    def __init__(self, dmon: Dmon) -> None:
        self._dmon = dmon

    def read(self, now: int) -> list[Sample]:
        """A row a GPU. Raises OSError with what dcgmi says where nothing is measured."""
        found = self._dmon.read(time.monotonic())
        if not found and self._dmon.error:
            raise OSError(self._dmon.error)
        return [Sample("gpu", {"gpu": index, **values}) for index, values in sorted(found.items())]

    def close(self) -> None:
        """End dcgmi."""
        self._dmon.close()


def open_source(context: Context) -> Dcgm:
    """The source. Raises SourceUnavailableError where DCGM is not installed."""
    program = find_program()
    if not program:
        raise SourceUnavailableError("dcgmi is not installed (package datacenter-gpu-manager)")
    return Dcgm(Dmon(program, context.config.period_seconds))
