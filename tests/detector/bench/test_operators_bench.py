"""What the progress of many GPUs costs."""

from __future__ import annotations

import time

import numpy as np
import pytest

from detector.config import Config
from detector.methods.progress.method import Progress
from detector.timeseries.rows import Rows
from detector.topology.tasks import Tasks
from store.schema.time import SECOND

pytestmark = pytest.mark.bench

MACHINES, GPUS, START = 12_500, 8, 1_700_000_000 * SECOND


def test_progress_of_a_hundred_thousand_gpus() -> None:
    """The bench prints the cost of a second of rows of four communicators each, while all move and when all stand."""
    gpu = np.arange(MACHINES * GPUS)
    groups = np.concatenate([gpu // 8, len(gpu) + gpu % MACHINES, 2 * len(gpu) + gpu // 16, 0 * gpu + 3 * len(gpu)])
    names, code = np.unique(groups, return_inverse=True)
    words = [f"{name:x}" for name in names]
    idents = tuple((f"m{at // GPUS}", str(at % GPUS), str(slot)) for slot in range(4) for at in gpu.tolist())
    tasks = Tasks(said={f"m{at}": "all" for at in range(MACHINES)}, seen={f"m{at}" for at in range(MACHINES)})
    metrics = ("operations_total", "pending", "active_ratio", "send_pending_ratio", "rank", "ranks")
    chance, method, seconds = np.random.default_rng(6), Progress(Config()), []
    for step in range(26):
        columns = (3 * min(step, 9), float(step > 9), chance.uniform(0.2, 0.3, len(code)), 0.1, np.arange(len(code)), 8)
        values = np.stack([np.broadcast_to(column, len(code)) for column in columns], 1).astype(float)
        texts = {"comm": (code, words), "operation": (0 * code, ["AllReduce:bf16:3"])}
        now = START + step * SECOND
        time_of = np.full(len(code), now)
        rows = Rows("nccl", time_of, np.arange(len(code)), idents, ("gpu", "slot"), metrics, values, texts)
        begin = time.process_time()
        assert method.step(now, {"nccl": rows}, tasks) == []
        seconds.append(time.process_time() - begin)
    print(
        f"\n{len(gpu):,} GPUs: {np.median(seconds[2:10]):.2f} s of CPU a step in motion, "
        f"{max(seconds[19:]):.2f} s while all stand"
    )
