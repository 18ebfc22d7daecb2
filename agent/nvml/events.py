"""Events of the driver through NVML, waited for on a thread of their own."""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from typing import Any

from agent.nvml.binding import NvmlError, nvml

WANTED = 0x2 | 0x8 | 0x800 | 0x2000 | 0x4000
"""Double-bit ECC error, Xid, failed row remapping, fatal poison, GPU unavailable."""
_WAIT_MS = 5000
_KINDS = 256
_PAUSE_S = 10.0


class Listening:
    """One event set, with the GPUs that are registered in it. Raises NvmlError."""

    def __init__(self, handles: dict[int, Any]) -> None:
        self.handles = handles
        self._index_of = {_address(handle): index for index, handle in handles.items()}
        self._set = nvml.nvmlEventSetCreate()
        registered = [self._register(handle) for handle in handles.values()]
        self.hears = any(registered)

    def wait(self) -> tuple[int, int, int] | None:
        """Index of the GPU (-1: not known), type and data of the next event; None when there is none for a while."""
        try:
            event = nvml.nvmlEventSetWait_v2(self._set, _WAIT_MS)
        except NvmlError as error:
            if error.value != nvml.NVML_ERROR_TIMEOUT:
                raise
            return None
        return self._index_of.get(_address(event.device), -1), int(event.eventType), int(event.eventData)

    def close(self) -> None:
        """Let go of the set."""
        nvml.nvmlEventSetFree(self._set)

    def _register(self, handle: Any) -> bool:
        """Whether this GPU tells any event."""
        try:
            supported = WANTED & nvml.nvmlDeviceGetSupportedEventTypes(handle)
            if supported:
                nvml.nvmlDeviceRegisterEvents(handle, supported, self._set)
        except NvmlError:
            return False  # a GPU that is lost, or a virtual one: the others go on
        return bool(supported)


class Events:
    """Events since the last call, equal ones with their number; and how many there was no room for."""

    def __init__(self, handles: dict[int, Any]) -> None:
        self.handles = handles
        """By NVML's index, the GPUs to listen to; another dictionary in its place is noticed at the next wait."""
        self._counts: dict[tuple[int, int, int], int] = {}
        self._dropped = 0
        self._lock = threading.Lock()
        try:
            first = Listening(handles)
        except NvmlError:
            first = None
        threading.Thread(target=self._serve, args=(first,), daemon=True).start()

    def drain(self) -> tuple[list[tuple[int, int, int, int]], int]:
        """GPU index, type, data and number of each kind of event, in the order in which they came first; and losses."""
        with self._lock:
            counts, self._counts = self._counts, {}
            dropped, self._dropped = self._dropped, 0
        return [(*key, times) for key, times in counts.items()], dropped

    def _serve(self, listening: Listening | None) -> None:
        """For ever. A wait that fails is begun again with a new set; the main thread tells when the driver is gone."""
        while True:
            try:
                listening = listening or Listening(self.handles)
                with contextlib.closing(listening):
                    self._listen(listening)
            except NvmlError:
                time.sleep(_PAUSE_S)
            listening = None

    def _listen(self, listening: Listening) -> None:
        while listening.hears and listening.handles is self.handles:
            event = listening.wait()
            if event is not None:
                self._note(event)
        if not listening.hears:
            time.sleep(_PAUSE_S)

    def _note(self, event: tuple[int, int, int]) -> None:
        with self._lock:
            if event in self._counts or len(self._counts) < _KINDS:
                self._counts[event] = self._counts.get(event, 0) + 1
            else:
                self._dropped += 1


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
