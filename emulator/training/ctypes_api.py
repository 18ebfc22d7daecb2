"""The ctypes door to libnccl and libcudart, emulated or NVIDIA's: declares the prototypes and counts every call."""

from __future__ import annotations

import ctypes
import struct
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from emulator.shared.errors import CallError

INT, SIZE, POINTER = ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p
FLOAT32, BFLOAT16, SUM = 7, 9, 0
NOT_READY = 600


class UniqueId(ctypes.Structure):
    """ncclUniqueId: 128 opaque bytes, passed by value."""

    _fields_ = (("internal", ctypes.c_ubyte * 128),)


class Dim3(ctypes.Structure):
    """dim3 of CUDA."""

    _fields_ = (("x", ctypes.c_uint), ("y", ctypes.c_uint), ("z", ctypes.c_uint))


_REDUCING: tuple[Any, ...] = (POINTER, POINTER, SIZE, INT, INT, POINTER, POINTER)
_ROOTED = _REDUCING
_PLAIN: tuple[Any, ...] = (POINTER, POINTER, SIZE, INT, POINTER, POINTER)
_PAIR: tuple[Any, ...] = (POINTER, SIZE, INT, INT, POINTER, POINTER)

# by name, the argument types of nccl.h and cuda_runtime_api.h
PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "ncclGetVersion": (POINTER,),
    "ncclGetUniqueId": (POINTER,),
    "ncclCommInitRank": (POINTER, INT, UniqueId, INT),
    "ncclCommInitRankConfig": (POINTER, INT, UniqueId, INT, POINTER),
    "ncclCommInitRankScalable": (POINTER, INT, INT, INT, POINTER, POINTER),
    "ncclCommInitAll": (POINTER, INT, POINTER),
    "ncclCommSplit": (POINTER, INT, INT, POINTER, POINTER),
    "ncclCommShrink": (POINTER, POINTER, INT, POINTER, POINTER, INT),
    "ncclCommFinalize": (POINTER,),
    "ncclCommDestroy": (POINTER,),
    "ncclCommAbort": (POINTER,),
    "ncclCommRevoke": (POINTER, INT),
    "ncclCommSuspend": (POINTER, INT),
    "ncclCommResume": (POINTER,),
    "ncclCommGetAsyncError": (POINTER, POINTER),
    "ncclCommCount": (POINTER, POINTER),
    "ncclCommUserRank": (POINTER, POINTER),
    "ncclCommCuDevice": (POINTER, POINTER),
    "ncclAllReduce": _REDUCING,
    "ncclAllReduceConfig": (*_REDUCING, POINTER),
    "ncclReduceScatter": _REDUCING,
    "ncclAllGather": _PLAIN,
    "ncclBroadcast": _ROOTED,
    "ncclBcast": _PAIR,
    "ncclReduce": (POINTER, POINTER, SIZE, INT, INT, INT, POINTER, POINTER),
    "ncclAlltoAll": _PLAIN,
    "ncclGather": _ROOTED,
    "ncclScatter": _ROOTED,
    "ncclSend": _PAIR,
    "ncclRecv": _PAIR,
    "ncclGroupStart": (),
    "ncclGroupEnd": (),
    "cudaGetDeviceCount": (POINTER,),
    "cudaSetDevice": (INT,),
    "cudaGetDevice": (POINTER,),
    "cudaStreamCreate": (POINTER,),
    "cudaStreamCreateWithFlags": (POINTER, ctypes.c_uint),
    "cudaStreamDestroy": (POINTER,),
    "cudaStreamSynchronize": (POINTER,),
    "cudaStreamSynchronize_ptsz": (POINTER,),
    "cudaStreamQuery": (POINTER,),
    "cudaStreamWaitEvent": (POINTER, POINTER, ctypes.c_uint),
    "cudaDeviceSynchronize": (),
    "cudaEventCreate": (POINTER,),
    "cudaEventCreateWithFlags": (POINTER, ctypes.c_uint),
    "cudaEventRecord": (POINTER, POINTER),
    "cudaEventQuery": (POINTER,),
    "cudaEventSynchronize": (POINTER,),
    "cudaEventDestroy": (POINTER,),
    "cudaLaunchKernel": (POINTER, Dim3, Dim3, POINTER, SIZE, POINTER),
    "cudaLaunchKernel_ptsz": (POINTER, Dim3, Dim3, POINTER, SIZE, POINTER),
    "cudaLaunchKernelExC": (POINTER, POINTER, POINTER),
    "cudaGraphLaunch": (POINTER, POINTER),
    "cudaStreamBeginCapture": (POINTER, INT),
    "cudaStreamEndCapture": (POINTER, POINTER),
    "cudaGraphInstantiate": (POINTER, POINTER, ctypes.c_ulonglong),
    "cudaGraphDestroy": (POINTER,),
    "cudaGraphExecDestroy": (POINTER,),
    "cudaLaunchHostFunc": (POINTER, POINTER, POINTER),
    "cudaMalloc": (POINTER, SIZE),
    "cudaMallocAsync": (POINTER, SIZE, POINTER),
    "cudaFree": (POINTER,),
    "cudaFreeAsync": (POINTER, POINTER),
    "cudaMemcpy": (POINTER, POINTER, SIZE, INT),
    "cudaMemcpyAsync": (POINTER, POINTER, SIZE, INT, POINTER),
}


NVIDIA_ONLY = frozenset({"ncclCommSuspend", "ncclCommResume"})
"""Of these, what the emulated libnccl lacks: it has no device memory to give back."""


def communicator_config(share: bool = False, blocking: bool = True) -> ctypes.Array[ctypes.c_char]:
    """An ncclConfig_t as NCCL_CONFIG_INITIALIZER makes it: sizes, magic, and everything else undefined.

    `share`: the child of a split uses its parent's resources (splitShare); `blocking`: calls return when all is done.
    """
    undefined = -(1 << 31)
    split, block = 1 if share else undefined, undefined if blocking else 0
    content = struct.pack(
        "<QII4iQ2iQ14i", 112, 0xCAFEBEEF, 23102, block, *[undefined] * 3, 0, split, undefined, 0, *[undefined] * 14
    )
    return ctypes.create_string_buffer(content, len(content))


class Calls:
    """Calls by name, counted by name before they are made; from any thread.

    Raises CallError when a library can't be loaded, lacks a function, or a checked call fails.
    """

    def __init__(self, *libraries: Path) -> None:
        try:
            self._libraries = [ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL) for path in libraries]
        except OSError as error:
            raise CallError(f"can't load a library: {error}") from None
        self._functions: dict[str, Any] = {}
        self._counts: dict[int, Counter[str]] = {}

    def function(self, name: str) -> Any:
        """The bare function with its argument types, not counted."""
        found = self._functions.get(name)
        if found is None:
            found = next((getattr(library, name) for library in self._libraries if hasattr(library, name)), None)
            if found is None or name not in PROTOTYPES:
                raise CallError(f"none of the libraries has {name}")
            found.argtypes, found.restype = PROTOTYPES[name], INT
            self._functions[name] = found
        return found

    def result(self, name: str, *arguments: Any) -> int:
        """Call and return the result code."""
        function = self.function(name)
        counts = self._counts.get(threading.get_ident())
        if counts is None:
            counts = self._counts[threading.get_ident()] = Counter()
        counts[name] += 1
        return int(function(*arguments))

    def __call__(self, name: str, *arguments: Any) -> None:
        """Call and insist on success. Raises CallError."""
        code = self.result(name, *arguments)
        if code:
            raise CallError(f"{name} answered {code}")

    def make(self, name: str, *arguments: Any) -> int:
        """Call a function that writes a new handle to its first argument; return the handle."""
        handle = POINTER()
        self(name, ctypes.byref(handle), *arguments)
        return handle.value or 0

    def totals(self) -> dict[str, int]:
        """How often each function was called so far, over all threads."""
        total: Counter[str] = Counter()
        for counts in list(self._counts.values()):
            total.update(dict(counts))
        return dict(sorted(total.items()))


def pointer_array(values: Sequence[int]) -> ctypes.Array[ctypes.c_void_p]:
    """A C array of pointers, for kernel arguments."""
    return (POINTER * len(values))(*values)
