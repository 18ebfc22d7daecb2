"""A task of one rank on libcudart and libnccl: makes a communicator, reduces, checks the sums, says what it called.

It says "ready", begins when a line comes on standard input, tells what it did, and stays until another line comes.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path
from typing import Any

from emulator.training.ctypes_api import FLOAT32, SUM, Calls, UniqueId

OPERATIONS, COUNT, SYNCHRONIZE_EACH = 137, 4099, 10
_TO_DEVICE, _TO_HOST = 1, 2


def reduce(calls: Calls) -> dict[str, Any]:
    """Reduce over one rank, so that what comes out is what went in. Raises CallError."""
    calls("cudaSetDevice", 0)
    given = (ctypes.c_float * COUNT)(*(0.5 * place for place in range(COUNT)))
    found, size = (ctypes.c_float * COUNT)(), ctypes.sizeof(given)
    stream, send, receive = (
        calls.make("cudaStreamCreate"),
        calls.make("cudaMalloc", size),
        calls.make("cudaMalloc", size),
    )
    calls("cudaMemcpy", send, given, size, _TO_DEVICE)
    name = UniqueId()
    calls("ncclGetUniqueId", ctypes.byref(name))
    comm = calls.make("ncclCommInitRank", 1, name, 0)
    for done in range(1, OPERATIONS + 1):
        calls("ncclAllReduce", send, receive, COUNT, FLOAT32, SUM, comm, stream)
        if done % SYNCHRONIZE_EACH == 0 or done == OPERATIONS:
            calls("cudaStreamSynchronize", stream)
    calls("cudaMemcpy", found, receive, size, _TO_HOST)
    version = ctypes.c_int()
    calls("ncclGetVersion", ctypes.byref(version))
    return {"comm": comm, "right": found[:] == given[:], "version": version.value, "calls": calls.totals()}


def main() -> None:
    """Arguments: libcudart, libnccl."""
    calls = Calls(*map(Path, sys.argv[1:]))
    print(json.dumps({"ready": os.getpid()}), flush=True)
    sys.stdin.readline()
    done = reduce(calls)
    print(json.dumps(done), flush=True)
    sys.stdin.readline()
    calls("ncclCommDestroy", done["comm"])


if __name__ == "__main__":
    main()
