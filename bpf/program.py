"""Handing a program's instructions to the kernel: no compiler is needed for that."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bpf.maps import bpf
from bpf.uprobe import TRACE_UPROBE_MULTI

PROBE, TRACEPOINT = (2, TRACE_UPROBE_MULTI), (26, 23)
"""Type and attach type (enum bpf_prog_type, enum bpf_attach_type): KPROBE for TRACE_UPROBE_MULTI, which kernels
before 6.6 ignore; TRACING for TRACE_RAW_TP."""
_PROG_LOAD = 5  # enum bpf_cmd (include/uapi/linux/bpf.h)
_LOG_BYTES = 1 << 16
_INSTRUCTION = np.dtype([("code", "u1"), ("registers", "u1"), ("offset", "<i2"), ("immediate", "<i4")])
_LOAD_64, _MAP = 0x18, 1  # BPF_LD | BPF_IMM | BPF_DW, and BPF_PSEUDO_MAP_FD in place of the source register
_ATTRIBUTES = np.dtype(
    [
        ("type", "<u4"),
        ("instructions", "<u4"),
        ("code", "<u8"),
        ("license", "<u8"),
        ("log_level", "<u4"),
        ("log_size", "<u4"),
        ("log", "<u8"),
        ("kernel_version", "<u4"),
        ("flags", "<u4"),
        ("name", "S16"),
        ("interface", "<u4"),
        ("attach_type", "<u4"),
        ("debug", "<u4", (9,)),
        ("attach_to", "<u4"),
        ("unused", "<u4", (4,)),
    ]
)


def numbered(code: bytes, descriptors: Sequence[int]) -> bytes:
    """Instructions that name maps by their number in place of their descriptor. Raises ValueError for another's."""
    instructions, maps = _instructions(code)
    instructions["immediate"][maps] = [descriptors.index(at) for at in instructions["immediate"][maps].tolist()]
    return instructions.tobytes()


def load(name: str, code: bytes, descriptors: Sequence[int], kind: tuple[int, int], attach_to: int = 0) -> int:
    """Load `numbered` instructions, with the maps of these descriptors; `attach_to` is a tracepoint's type number.

    Returns a descriptor. Raises OSError with the verifier's last word; IndexError for a map that is not there.
    """
    instructions, maps = _instructions(code)
    instructions["immediate"][maps] = np.array(descriptors)[instructions["immediate"][maps]]
    license_, log = ctypes.create_string_buffer(b"GPL"), ctypes.create_string_buffer(_LOG_BYTES)
    request = np.zeros((), _ATTRIBUTES)
    request["type"], request["attach_type"] = kind
    request["attach_to"], request["name"] = attach_to, name.encode()[:15]
    request["instructions"], request["code"] = len(instructions), instructions.ctypes.data
    request["license"] = ctypes.addressof(license_)
    try:
        return bpf(_PROG_LOAD, request.tobytes())
    except OSError:
        request["log_level"], request["log_size"], request["log"] = 1, _LOG_BYTES, ctypes.addressof(log)
    try:
        return bpf(_PROG_LOAD, request.tobytes())
    except OSError as error:
        said = [line for line in log.value.decode(errors="replace").splitlines() if line and "processed" not in line]
        raise OSError(error.errno, f"{error.strerror} ({said[-1]})" if said else error.strerror) from None


def _instructions(code: bytes) -> tuple[NDArray[np.void], NDArray[np.bool_]]:
    """A copy of them, and which name a map."""
    instructions = np.frombuffer(code, _INSTRUCTION).copy()
    return instructions, (instructions["code"] == _LOAD_64) & (instructions["registers"] >> 4 == _MAP)
