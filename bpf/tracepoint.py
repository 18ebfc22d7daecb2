"""Programs at tracepoints of the kernel, which hand them their own structures: no tracefs, no perf event."""

from __future__ import annotations

import numpy as np

from bpf.maps import bpf

PREFIX = "tp_btf__"
"""Programs of that prefix belong to the tracepoint that the rest of their name says."""
_RAW_TRACEPOINT_OPEN = 17  # enum bpf_cmd (include/uapi/linux/bpf.h)


def attach(program: int) -> int:
    """Run a loaded program at its tracepoint. Returns a descriptor; closing it detaches. Raises OSError."""
    return bpf(_RAW_TRACEPOINT_OPEN, np.array([0, 0, program, 0], np.uint32).tobytes())
