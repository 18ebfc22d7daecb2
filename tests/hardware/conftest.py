"""A real device to test against, where there is one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent.nvml_files import find_library


@pytest.fixture(scope="session")
def real_gpus() -> int:
    """How many GPUs the NVIDIA driver has here; skips where it has none, and says why."""
    count = sum(name.name.removeprefix("nvidia").isdecimal() for name in Path("/dev").glob("nvidia*"))
    if not count:
        pytest.skip("no NVIDIA GPU here: there is no /dev/nvidia0")
    if not find_library(Path("/"), os.environ):
        pytest.skip("no libnvidia-ml.so.1 beside the GPU: the container was started without the driver's utilities")
    return count
