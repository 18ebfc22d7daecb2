"""How well and how fast devices are found in logs of operators, and what the progress of many GPUs costs."""

from __future__ import annotations

import time

import numpy as np
import pytest

from cli.commands.evaluation.train import log_of
from detector.attribution.features import IRREGULAR_RATIO
from detector.attribution.forest import load
from detector.attribution.operator_log import analyse
from detector.config import Config
from detector.methods.progress.method import Progress
from detector.timeseries.rows import Rows
from detector.topology.tasks import Tasks
from emulator.simulation.operator_log import operators_log
from store.schema.time import SECOND

pytestmark = pytest.mark.bench

SHAPES = {512: (4, 2, 2, 4, 2, 4), 2048: (4, 2, 4, 4, 2, 8), 8192: (8, 2, 4, 8, 2, 8)}
LOGS = {512: 100, 2048: 60, 8192: 40}
SEED, ITERATIONS = 40_000, 24


@pytest.mark.parametrize("ranks", SHAPES)
def test_holmes_locates_in_six_dimensions(ranks: int) -> None:
    """At 8,192 ranks the culprit is among the two named in at least 97 % of irregular logs, in at most 3 s each."""
    chance, forest = np.random.default_rng(ranks), load()
    first, named, seconds, seed = [], [], [], SEED
    while len(named) < LOGS[ranks]:
        seed += 1
        drift = float(chance.choice([1.0, 1.0, 1.3]))
        told = operators_log(SHAPES[ranks], ITERATIONS, seed, ("gpu", "nic")[seed % 2], chance.uniform(1.1, 1.5), drift)
        if told.longer < IRREGULAR_RATIO:  # below, irregular and regular iterations cannot be told apart
            continue
        begin = time.process_time()
        found = analyse(log_of(told), forest)
        seconds.append(time.process_time() - begin)
        first.append(bool(found) and found[0].rank == told.culprit)
        named.append(told.culprit in {suspect.rank for suspect in found})
        print(f"\r{ranks} ranks: {sum(named)} of {len(named)}", end="", flush=True)
    print(
        f"\r{ranks} ranks, {len(named)} irregular logs of {ITERATIONS} iterations ({seed - SEED} made): "
        f"{np.mean(named):.1%} among two, {np.mean(first):.1%} first; "
        f"{np.median(seconds):.2f} s of CPU a log, at most {max(seconds):.2f} s"
    )
    assert np.mean(named) >= 0.97
    assert np.median(seconds) <= 3.0


MACHINES, GPUS, START = 12_500, 8, 1_700_000_000 * SECOND


def test_progress_of_a_hundred_thousand_gpus() -> None:
    """What a second of rows of four communicators each costs, while all move and when all stand; printed."""
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
