"""What a rank needs to run on NVIDIA's own libnccl instead of the emulated one."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Final

ENVIRONMENT: Final = {
    "NCCL_DEBUG": "WARN",
    "NCCL_DEBUG_FILE": "/dev/stderr",
    "NCCL_NET": "Socket",
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_IB_DISABLE": "1",
    "NCCL_P2P_DISABLE": "1",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_CUMEM_ENABLE": "0",
    "NCCL_CUMEM_HOST_ENABLE": "0",
    "NCCL_RAS_ENABLE": "0",
    "NCCL_BUFFSIZE": str(16 << 20),  # few big steps: each costs two cores more than a real machine
    "NCCL_ALGO": "Ring",
    "NCCL_PROTO": "Simple",
    "NCCL_MIN_NCHANNELS": "1",
    "NCCL_MAX_NCHANNELS": "1",
}
"""What the emulated GPU plays: one ring over sockets, between GPUs of one machine shared memory."""

NOT_PLAYED: Final = {
    "wrong_collective": "on one ring, ranks that disagree go on with each other's data and nothing hangs",
}
"""Faults that show on the emulated libnccl alone, and why."""


class NvidiaError(OSError):
    """The library is none that can be led to the emulated GPU."""


def prepare(machine: int, folder: Path) -> None:
    """Before the library is loaded: tell NCCL what to use and which machine this is, and load the NVML that it asks.

    What the environment says already has priority. Raises NvidiaError.
    """
    os.environ.update(ENVIRONMENT | {"NCCL_HOSTID": f"machine{machine}"} | dict(os.environ))
    try:
        ctypes.CDLL(str(folder / "libnvidia-ml.so.1"), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise NvidiaError(f"can't load the emulated NVML: {error}") from None


def take_over(folder: Path) -> int:
    """Lead the loaded libnccl of this folder to the emulated GPU; its version, as 22703. Raises NvidiaError."""
    library = (folder / "libnccl.so.2").resolve()
    cudart = ctypes.CDLL(str(folder / "libcudart.so.12"))
    version = int(cudart.peerwatch_take_over(os.fsencode(library)))
    if not version:
        raise NvidiaError(f"{library} is no libnccl as NVIDIA's wheels have it: its symbols are needed")
    return version
