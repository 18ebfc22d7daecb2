"""Makes a stated number of calls as fast as it can and says exactly how many: the measure of a probe's count.

Every NCCL call gets a NULL communicator, so the same calls work on the emulated library and, without any GPU, on
NVIDIA's, where each answers an error. `ncclBcast` enters `ncclBroadcast` as well, in both.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from emulator.shared.errors import CallError
from emulator.training.ctypes_api import FLOAT32, SUM, Calls

CODE: Final = ctypes.c_int()
_PLAIN: Final = (None, None, 1, FLOAT32, None, None)
_REDUCING: Final = (None, None, 1, FLOAT32, SUM, None, None)
_PAIR: Final = (None, 1, FLOAT32, 0, None, None)
ARGUMENTS: Final[dict[str, tuple[Any, ...]]] = {
    "ncclAllReduce": _REDUCING,
    "ncclAllReduceConfig": (*_REDUCING, None),
    "ncclReduceScatter": _REDUCING,
    "ncclAllGather": _PLAIN,
    "ncclBroadcast": _REDUCING,
    "ncclBcast": _PAIR,
    "ncclReduce": (None, None, 1, FLOAT32, SUM, 0, None, None),
    "ncclAlltoAll": _PLAIN,
    "ncclGather": _REDUCING,
    "ncclScatter": _REDUCING,
    "ncclSend": _PAIR,
    "ncclRecv": _PAIR,
    "ncclGroupStart": (),
    "ncclGroupEnd": (),
    "ncclCommGetAsyncError": (None, ctypes.byref(CODE)),
    "ncclCommCount": (None, ctypes.byref(CODE)),
    "ncclCommFinalize": (None,),
    "ncclCommDestroy": (None,),
    "ncclCommAbort": (None,),
    "cudaStreamSynchronize": (None,),
    "cudaStreamSynchronize_ptsz": (None,),
    "cudaStreamQuery": (None,),
    "cudaDeviceSynchronize": (),
    "cudaEventQuery": (None,),
    "cudaGraphLaunch": (None, None),
    "cudaMemcpyAsync": (None, None, 0, 0, None),
    "cudaGetDeviceCount": (ctypes.byref(CODE),),
}
MIX: Final = "ncclAllReduce=4,ncclReduceScatter=2,ncclAllGather=2,ncclBcast=1,ncclSend=1,ncclCommGetAsyncError=1"


def parse_mix(text: str) -> list[str]:
    """`name=weight,…` as the sequence of names that is called over and over. Raises CallError."""
    sequence: list[str] = []
    for part in text.split(","):
        name, _, weight = part.partition("=")
        if name not in ARGUMENTS or not (weight or "1").isdecimal():
            raise CallError(f"can't call {part!r}: a mix is name=weight,… with names among {', '.join(ARGUMENTS)}")
        sequence += [name] * int(weight or "1")
    return sequence


def make_calls(calls: Calls, sequence: Sequence[str], total: int) -> dict[str, int]:
    """Call through the sequence until `total` calls are made; the number of each. Raises CallError."""
    steps = [(calls.function(name), ARGUMENTS[name]) for name in sequence]
    rounds, rest = divmod(total, len(steps))
    for _ in range(rounds):
        for function, arguments in steps:
            function(*arguments)
    for function, arguments in steps[:rest]:
        function(*arguments)
    names = set(sequence)
    return {name: rounds * sequence.count(name) + list(sequence[:rest]).count(name) for name in sorted(names)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Say "ready" (with --wait: until a line comes), call, print the counts, with --wait stay for another line."""
    parser = argparse.ArgumentParser(prog="caller", description="make N calls and print how many of each")
    parser.add_argument("--library", type=Path, action="append", required=True, help="may be given twice")
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--mix", default=MIX)
    parser.add_argument("--wait", action="store_true", help="begin and end when a line comes on standard input")
    given = parser.parse_args(arguments)
    try:
        sequence, calls = parse_mix(given.mix), Calls(*given.library)
        print(json.dumps({"ready": os.getpid()}), flush=True)
        if given.wait:
            sys.stdin.readline()
        print(json.dumps({"calls": make_calls(calls, sequence, given.calls)}), flush=True)
        if given.wait:
            sys.stdin.readline()
    except CallError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
