"""The injections with which Mycroft and FlagScale were tried, as faults of an emulated task."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from store.open import open_store

INJECTIONS = {
    "Mycroft: NIC shutdown": "nic_down",
    "Mycroft: NIC bandwidth limit": "nic_downgrade",
    "Mycroft: PCIe downgrading": "pcie_downgrade",
    "Mycroft: GPU power limit": "power_cap",
    "Mycroft: background compute": "background_compute",
    "Mycroft: background traffic": "background_traffic",
    "Mycroft: NCCL delay": "nccl_delay",
    "FlagScale: missing enter": "rank_hang",
    "FlagScale: signature mismatch": "wrong_collective",
    "FlagScale: all entered, none moves": "nic_down",
    "FlagScale: late enter": "late_enter",
}
KINDS = tuple(sorted(set(INJECTIONS.values())))
SHAPE = (4, 4, 2, 2)
"""Machines, GPUs of each, tensor and pipeline of a task of 16 ranks; data 4."""
TASK = ("--machines", "4", "--gpus", "4", "--tensor", "2", "--pipeline", "2", "--healthy", "75")
"""Such a demo's options: baselines are made in a task's first minute."""


def named_device(said: dict[str, Any]) -> bool:
    """Whether a demo's first verdict names the GPU at fault, or the port beside it."""
    true = said["fault"]["device"]
    return said["verdicts"][0]["device"] in (true, f"rdma:mlx5_{true.split(':')[1]}/1")


def harms_nothing(readings: Path, start: int) -> bool:
    """Whether iterations after `start` (Unix ns) are no longer than before, to within 5 % of their median.

    An emulated port's fault slows what its GPU sends, and some GPUs of a ring only receive through theirs.
    """
    with closing(open_store(str(readings))) as store:
        rows = store.read("nccl")
    taken, length = (rows.column(name).to_numpy(zero_copy_only=False) for name in ("time", "iteration_seconds"))
    read = ~np.isnan(length)
    before, after = length[read & (taken < start)], length[read & (taken > start)]
    return bool(len(after) and np.median(after) < 1.05 * np.median(before))
