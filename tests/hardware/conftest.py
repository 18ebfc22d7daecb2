"""A real device to test against, where there is one."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from agent.nvml.library_path import find_library
from tests.conftest import NCCL_WHEEL, wheel_file

CUDART_WHEEL = "nvidia-cuda-runtime-cu12==12.9.79"
CUDART_FILE = "nvidia/cuda_runtime/lib/libcudart.so.12"
CUDART_PLATFORM = "manylinux_2_17_x86_64"


@pytest.fixture(scope="session")
def real_gpus() -> int:
    """How many GPUs the NVIDIA driver has here; skips where it has none, and says why."""
    count = sum(name.name.removeprefix("nvidia").isdecimal() for name in Path("/dev").glob("nvidia*"))
    if not count:
        pytest.skip("no NVIDIA GPU here: there is no /dev/nvidia0")
    if not find_library(Path("/"), os.environ):
        pytest.skip("no libnvidia-ml.so.1 beside the GPU: the container was started without the driver's utilities")
    return count


@pytest.fixture(scope="session")
def nvidia_libraries(real_gpus: int) -> tuple[Path, Path]:
    """NVIDIA's own libcudart and libnccl: those of this Python's packages, else out of wheels."""
    return (
        _installed("cuda_runtime/lib/libcudart.so.12") or wheel_file(CUDART_WHEEL, CUDART_FILE, CUDART_PLATFORM),
        _installed("nccl/lib/libnccl.so.2") or wheel_file(NCCL_WHEEL, "nvidia/nccl/lib/libnccl.so.2"),
    )


def _installed(place: str) -> Path | None:
    return next((path for folder in sys.path if (path := Path(folder) / "nvidia" / place).is_file()), None)
