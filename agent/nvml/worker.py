"""The child that calls NVML: one line of JSON for what it found at the start, then one for each request on stdin.

It holds no numpy and ends with its parent. Before it asks a GPU it writes that GPU's index plus one into shared
memory: when a call does not return, that tells where.
"""

from __future__ import annotations

import mmap
import os
import sys
import time
from typing import Any

from agent.nvml.binding import GONE, LOST, NvmlError, nvml, open_library
from agent.nvml.device import Device
from agent.nvml.events import Events
from agent.system.reading_child import settle, tell

STARTING = 255
"""In place of a GPU: the library is being initialised."""


class Gpus:
    """All GPUs that NVML finds, in its order. Raises NvmlError when the driver is gone."""

    def __init__(self, where: mmap.mmap) -> None:
        self._where = where
        self._devices: dict[int, Device] = {}
        self._lost: dict[int, str] = {}
        self._unread: dict[int, str] = {}  # their failure says nothing of the GPU
        self._count = int(nvml.nvmlDeviceGetCount())
        self._open()
        self._events = Events(self._handles())

    def hello(self) -> dict[str, Any]:
        """What there is."""
        return {
            "driver": str(nvml.nvmlSystemGetDriverVersion()),
            "there": {index: [device.uuid, device.mig] for index, device in self._devices.items()},
            "places": {index: [device.serial, device.pci_address] for index, device in self._devices.items()},
            "instances": {index: device.instances for index, device in self._devices.items() if device.mig},
            "lost": self._lost,
            "unread": self._unread,
        }

    def read(self, slow: bool) -> dict[str, Any]:
        """One reading. A GPU that fails, or has changed, is opened again: tried at slow readings until it works."""
        opened = slow and self._open()
        found, processes, parts = {}, {}, {}
        for index, device in self._devices.items():
            self._where[0] = index + 1
            try:
                found[index] = device.read(time.monotonic(), slow)
                if device.mig:
                    parts[index] = device.read_instances(time.monotonic())
                if slow:
                    processes[index] = device.processes()
            except NvmlError as error:
                self._lose(index, error)
        self._where[0] = 0
        for index in (*self._lost, *self._unread):
            self._devices.pop(index, None)
        events, dropped = self._events.drain()
        answer = {"gpus": found, "lost": self._lost, "unread": self._unread, "events": events, "dropped": dropped}
        if parts:
            answer["parts"] = parts
        if slow:
            answer["processes"] = processes
        if opened:
            self._events.handles = self._handles()
            answer |= self.hello()
        return answer

    def _handles(self) -> dict[int, Any]:
        return {index: device.handle for index, device in self._devices.items()}

    def _open(self) -> bool:
        """Open the GPUs that are not, or are no longer what they were; whether there were any."""
        opened = 0
        for index in range(self._count):
            self._where[0] = index + 1
            try:
                if index in self._devices and not self._devices[index].outdated:
                    continue
                self._devices.pop(index, None)
                self._lost.pop(index, None)
                self._unread.pop(index, None)
                self._devices[index] = Device(nvml.nvmlDeviceGetHandleByIndex(index))
                opened += 1
            except NvmlError as error:
                self._lose(index, error)
        self._where[0] = 0
        return opened > 0

    def _lose(self, index: int, error: NvmlError) -> None:
        if error.value in GONE:
            raise error
        (self._lost if error.value in LOST else self._unread)[index] = str(error)


def main() -> None:
    """Arguments: the descriptor of the shared memory, then the paths where the library may be."""
    settle()
    where = mmap.mmap(int(sys.argv[1]), mmap.PAGESIZE)
    where[0] = STARTING
    try:
        open_library(sys.argv[2:])
        where[0] = 0
        gpus = Gpus(where)
        tell(gpus.hello())
        while request := os.read(0, 64):
            tell(gpus.read(b"s" in request))
    except NvmlError as error:
        tell({"gone": f"NVML says: {error}"})
    except BrokenPipeError:
        os._exit(0)  # the agent has closed the pipe
    except OSError as error:
        tell({"gone": str(error)})
    os._exit(0)  # the thread that waits for events need not come back
