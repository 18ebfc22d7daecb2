"""NVML, through nvidia-ml-py: imported by the child that reads GPUs, never by the agent itself.

A call may block for as long as the driver likes, and one GPU that is lost can block them all: hence the child.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Any

import pynvml as nvml
from pynvml import NVMLError as NvmlError

__all__ = ["GONE", "LOST", "NOT_HERE", "PASSING", "Fields", "NvmlError", "nvml", "open_library"]

NOT_HERE = frozenset((3, 4, 13, 22, 25, 26))
"""Not supported, no permission, function not found, no ECC in a virtual GPU, other structure version, deprecated."""
LOST = frozenset((15, 16, 28))
"""The GPU is lost, must be reset before it can be used, or is not found any more."""
GONE = frozenset((1, 9, 12, 18))
"""Not initialised (any more), driver not loaded, library not found, library and driver differ."""
PASSING = frozenset((10, 11, 19, 20, 23, 27))
"""Timed out, interrupt trouble, in use, out of memory, out of resources, not ready: it may work the next time."""

_RECORD = Struct("<IIqqIi8s")  # nvmlFieldValue_t: id, scope, timestamp, latency, type, return, value
_TYPES = tuple(map(Struct, ("<d", "<I4x", "<Q", "<Q", "<q", "<i4x", "<H6x")))


def open_library(paths: Iterable[str]) -> None:
    """Load the first of these libraries that can be, and initialise it. Raises NvmlError; OSError where none can be.

    What is loaded by path is found again by its name, which is how the binding asks for it.
    """
    failure: OSError | None = None
    for path in paths:
        try:
            ctypes.CDLL(path)
            break
        except OSError as error:  # of another architecture, or needs another libc: the next may do
            failure = error
    try:
        nvml.nvmlInit()
    except NvmlError as error:
        if failure is not None and error.value == nvml.NVML_ERROR_LIBRARY_NOT_FOUND:
            raise OSError(f"the library cannot be loaded: {failure}") from None
        raise


class Fields:
    """Field values of one GPU, in one call; each is an id and a scope (0 where there is but one)."""

    def __init__(self, handle: Any, wanted: Sequence[tuple[int, int]]) -> None:
        self._handle, self._count = handle, len(wanted)
        self._values = (nvml.c_nvmlFieldValue_t * len(wanted))()
        for value, (field, scope) in zip(self._values, wanted, strict=True):
            value.fieldId, value.scopeId = field, scope

    def read(self) -> list[float | None]:
        """The value of each, None where it has none now. Raises NvmlError when the call as a whole fails."""
        if not self._count:
            return []
        code = nvml.nvmlLib.nvmlDeviceGetFieldValues(self._handle, self._count, self._values)
        if code:
            raise NvmlError(code)
        return [
            _TYPES[kind].unpack(raw)[0] if not code and 0 <= kind < len(_TYPES) else None
            for _, _, _, _, kind, code, raw in _RECORD.iter_unpack(self._values)
        ]

    def codes(self) -> list[int]:
        """What the last reading returned for each."""
        return [code for _, _, _, _, _, code, _ in _RECORD.iter_unpack(self._values)]
