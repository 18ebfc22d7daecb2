"""`peerwatch behaviour`: the command over a store."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from store.schema.sample import Batch, Sample
from store.sqlite.embedded import Embedded
from tests.cli.conftest import one_line, run

SECOND = 10**9


def stored(place: Path, slow: str, collecting: float) -> Path:
    """Five machines of one task for two minutes; one of them with a slow clock, all of them collecting garbage."""
    store, chance = Embedded(place), np.random.default_rng(8)
    for at in range(120):
        batches = []
        for rank in range(5):
            clock = (1.4e9 if f"m{rank}" == slow else 1.9e9) + chance.normal(0, 5e6)
            gpu = {"gpu": "0", "tensor_active_ratio": 0.5 + chance.normal(0, 0.004), "sm_clock_hertz": clock}
            cuda = {"gpu": "0", "gc_seconds_total": collecting * at}
            counts = {"operations_total": 40 * at, "bytes_total": 800_000_000 * at, "rank": rank, "ranks": 5, "pid": 7}
            times = {"active_ratio": 0.4 + chance.normal(0, 0.004), "iteration_seconds": 0.25}
            nccl = {"gpu": "0", "slot": "0", "comm": "c0ffee", "operation": "AllReduce:f32:7", **counts, **times}
            samples = Sample("gpu", gpu), Sample("cuda", cuda), Sample("nccl", nccl)
            batches.append(Batch(f"m{rank}", (1000 + at) * SECOND, samples))
        store.write(batches)
    store.close()
    return place


def test_a_slow_gpu_and_a_regression_are_shown(tmp_path: Path) -> None:
    """The comparison with a saved healthy run shows that all ranks collect garbage and that one computes slowly."""
    healthy, later = stored(tmp_path / "a.db", "", 0.001), stored(tmp_path / "b.db", "m3", 0.04)
    saved = run("behaviour", "--store", healthy, "--save-baseline", tmp_path / "healthy.json")
    assert "No measure is worse" in saved.stdout, saved.stderr
    found = json.loads(
        run("behaviour", "c0ff", "--store", later, "--baseline", tmp_path / "healthy.json", "--json").stdout
    )
    named = {(one["measure"], one["against"], one["all_ranks"], next(iter(one["ranks"]))) for one in found["findings"]}
    assert ("gc", "history", True, "m0 gpu:0") in named
    assert ("compute_rate", "peers", False, "m3 gpu:0") in named
    rates = {one["measure"]: one for one in found["measures"]}["bandwidth of AllReduce over 5 ranks"]["ranks"]
    assert abs(rates["m1 gpu:0"]["p50"] - 2e9) < 3e7


def test_what_does_not_exist_is_one_line(tmp_path: Path) -> None:
    """A task that the store does not know, and an empty trace, are one line and exit code 1."""
    place = stored(tmp_path / "a.db", "", 0.0)
    assert run("behaviour", place).stdout == run("behaviour", "--store", place).stdout
    assert "it has c0ffee" in one_line(run("behaviour", "nothing", "--store", place), 1)
    assert "none.json cannot be read" in one_line(run("behaviour", "none.json", "--store", place), 1)
    empty = tmp_path / "t.json"
    empty.write_text('{"traceEvents": []}')
    assert "t.json" in one_line(run("behaviour", empty), 1)
