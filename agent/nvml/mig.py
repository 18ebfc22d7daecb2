"""The parts of a GPU that MIG has split: each has a UUID, memory and, with GPM, activity of its own.

What is not split (clocks, power, temperature, links) is the whole GPU's and stands in its row.
"""

from __future__ import annotations

from typing import Any

from agent.nvml.binding import GONE, LOST, NOT_HERE, NvmlError, nvml
from agent.nvml.gpm import Gpm, open_gpm

_NOT_FOUND = 6


class Instance:
    """One MIG device: a compute instance of a GPU instance. Raises NvmlError when the GPU or the driver is gone."""

    def __init__(self, parent: Any, handle: Any) -> None:
        self._handle = handle
        gpu, compute = int(nvml.nvmlDeviceGetGpuInstanceId(handle)), int(nvml.nvmlDeviceGetComputeInstanceId(handle))
        self.name = f"{gpu}.{compute}" if compute else str(gpu)
        self.uuid = str(nvml.nvmlDeviceGetUUID(handle))
        self._gpm: Gpm | None = open_gpm(parent, gpu)

    def read(self, seconds: float) -> dict[str, float]:
        """Memory in use, and what GPM tells at a time of a steady clock; an instance that was destroyed has nothing."""
        found: dict[str, float] = {}
        try:
            found["memory_used_bytes"] = nvml.nvmlDeviceGetMemoryInfo(self._handle, nvml.nvmlMemory_v2).used
            if self._gpm is not None:
                found |= self._gpm.read(seconds)
        except NvmlError as error:
            if error.value in GONE | LOST:
                raise
            self._gpm = None if error.value in NOT_HERE else self._gpm
        return found


def open_instances(parent: Any) -> list[Instance]:
    """The instances of a GPU; none where it is whole, or the library is too old. Raises NvmlError."""
    found = []
    try:
        for index in range(int(nvml.nvmlDeviceGetMaxMigDeviceCount(parent))):
            try:
                found.append(Instance(parent, nvml.nvmlDeviceGetMigDeviceHandleByIndex(parent, index)))
            except NvmlError as error:
                if error.value != _NOT_FOUND:  # a place without an instance
                    raise
    except NvmlError as error:
        if error.value not in NOT_HERE:
            raise
    return found


def names_of(parent: Any) -> list[str]:
    """The UUIDs of the instances that there are now. Raises NvmlError."""
    return [instance.uuid for instance in open_instances(parent)]
