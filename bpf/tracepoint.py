"""Programs at tracepoints of the kernel, loaded with the types of what they are handed: no tracefs, no perf event."""

from __future__ import annotations

import ctypes

import numpy as np

from bpf.maps import bpf

PREFIX = "tp_btf__"
"""Programs of that prefix belong to the tracepoint that the rest of their name says."""
_PROG_LOAD, _RAW_TRACEPOINT_OPEN = 5, 17  # enum bpf_cmd (include/uapi/linux/bpf.h)
_TRACING, _TRACE_RAW_TP = 26, 23  # enum bpf_prog_type, enum bpf_attach_type
_LOG_BYTES = 1 << 16
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


def load(name: str, code: int, size: int, tracepoint: int) -> int:
    """Load `size` bytes of instructions at address `code` for the tracepoint of that type number; a descriptor.

    Raises OSError with the verifier's last word. bcc itself cannot load this kind of program under every version.
    """
    text, log = ctypes.create_string_buffer(b"GPL"), ctypes.create_string_buffer(_LOG_BYTES)
    request = np.zeros((), _ATTRIBUTES)
    request["type"], request["attach_type"], request["attach_to"] = _TRACING, _TRACE_RAW_TP, tracepoint
    request["instructions"], request["code"] = size // 8, code
    request["license"], request["name"] = ctypes.addressof(text), name.encode()[:15]
    try:
        return bpf(_PROG_LOAD, request.tobytes())
    except OSError:
        request["log_level"], request["log_size"], request["log"] = 1, _LOG_BYTES, ctypes.addressof(log)
    try:
        return bpf(_PROG_LOAD, request.tobytes())
    except OSError as error:
        said = [line for line in log.value.decode(errors="replace").splitlines() if line and "processed" not in line]
        raise OSError(error.errno, f"{error.strerror} ({said[-1]})" if said else error.strerror) from None


def attach(program: int) -> int:
    """Run a loaded program at its tracepoint. Returns a descriptor; closing it detaches. Raises OSError."""
    return bpf(_RAW_TRACEPOINT_OPEN, np.array([0, 0, program, 0], np.uint32).tobytes())
