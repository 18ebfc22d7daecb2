"""Events that the driver tells through NVML, waited for on a thread of their own."""

from __future__ import annotations

import ctypes
import threading
import time
from typing import Any

from agent.nvml import NvmlError, nvml

WANTED = 0x2 | 0x8 | 0x800 | 0x2000 | 0x4000
"""Double-bit ECC error, Xid, failed row remapping, fatal poison, GPU unavailable."""
_WAIT_MS = 5000
_KINDS = 256
_PAUSE_S = 10.0


class Events:
    """What was told since it was last taken; equal ones are counted, and what there is no room for is counted too."""

    def __init__(self, handles: dict[int, Any]) -> None:
        self.handles = handles
        """By NVML's index, the GPUs to listen to; another dictionary in its place is noticed at the next wait."""
        self._told: dict[tuple[int, int, int], int] = {}
        self._dropped = 0
        self._lock = threading.Lock()
        threading.Thread(target=self._wait, daemon=True).start()

    def take(self) -> tuple[list[tuple[int, int, int, int]], int]:
        """GPU index, type, data and number of each kind of event, in the order in which they came first; and losses."""
        with self._lock:
            told, self._told = self._told, {}
            dropped, self._dropped = self._dropped, 0
        return [(*key, times) for key, times in told.items()], dropped

    def _wait(self) -> None:
        """For ever. A wait that fails is begun again with a new set; the main thread tells when the driver is gone."""
        while True:
            try:
                self._listen()
            except NvmlError:
                time.sleep(_PAUSE_S)

    def _listen(self) -> None:
        handles, events = self.handles, nvml.nvmlEventSetCreate()
        index_of = {_address(handle): index for index, handle in handles.items()}
        try:
            registered = [self._register(handle, events) for handle in handles.values()]
            while any(registered) and handles is self.handles:
                try:
                    event = nvml.nvmlEventSetWait_v2(events, _WAIT_MS)
                except NvmlError as error:
                    if error.value != nvml.NVML_ERROR_TIMEOUT:
                        raise
                    continue
                self._note(index_of.get(_address(event.device), -1), event.eventType, event.eventData)
            if not any(registered):
                time.sleep(_PAUSE_S)
        finally:
            nvml.nvmlEventSetFree(events)

    def _register(self, handle: Any, events: Any) -> bool:
        """Whether this GPU tells any event."""
        try:
            supported = WANTED & nvml.nvmlDeviceGetSupportedEventTypes(handle)
            if supported:
                nvml.nvmlDeviceRegisterEvents(handle, supported, events)
        except NvmlError:
            return False  # a GPU that is lost, or a virtual one: the others go on
        return bool(supported)

    def _note(self, index: int, kind: int, data: int) -> None:
        key = (index, int(kind), int(data))
        with self._lock:
            if key in self._told or len(self._told) < _KINDS:
                self._told[key] = self._told.get(key, 0) + 1
            else:
                self._dropped += 1


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
