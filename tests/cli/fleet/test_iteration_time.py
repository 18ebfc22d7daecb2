"""Since when a task is slower: `peerwatch tasks` and `peerwatch show` say it in words and as JSON."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from store.schema.sample import Batch, Sample
from store.sqlite.embedded import Embedded
from tests.cli.conftest import SECOND, run, verdict


@pytest.fixture(scope="module")
def slower(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A store with two machines, iterations of 1.5 s instead of 1 s for two minutes, and one verdict; the onset."""
    place, now = tmp_path_factory.mktemp("pace") / "s.db", time.time_ns()
    onset = now - 120 * SECOND
    store = Embedded(place)
    for rank, machine in enumerate(("m1", "m2")):
        batches = []
        for second in range(300, 0, -1):
            at = now - second * SECOND
            took = (1.0 if at < onset else 1.5) + second % 7 / 1000
            values = {"gpu": "0", "slot": "0", "comm": "c0ffee", "rank": rank, "ranks": 2, "pid": 40 + rank}
            values |= {"operation": "AllReduce:f32:9", "operations_total": 300 - second, "iteration_seconds": took}
            batches.append(Batch(machine, at, (Sample("nccl", values),)))
        store.write(batches)
    store.write([verdict("m2", now - 60 * SECOND, "crit")])
    store.close()
    return place, onset


def test_tasks_say_since_when(slower: tuple[Path, int]) -> None:
    """A line under the task tells when its iterations grew longer, and from what to what."""
    place, onset = slower
    (task,) = json.loads(run("tasks", "--json", "--store", place).stdout)["tasks"]
    (found,) = task["irregular"]
    assert (found["kind"], found["until"]) == ("slow", None)
    assert abs(found["since"] - onset) < 5 * SECOND
    assert (found["before_seconds"], found["seconds"]) == (pytest.approx(1, abs=0.02), pytest.approx(1.5, abs=0.02))
    clock = time.strftime("%H:%M:%S", time.gmtime(found["since"] // SECOND))
    assert f"  slower since {clock}: 1 s -> 1.5 s\n" in run("tasks", "--store", place).stdout


def test_show_says_it_with_a_verdict(slower: tuple[Path, int]) -> None:
    """A verdict on a machine comes with how its task went around the onset."""
    place, _ = slower
    (found,) = json.loads(run("show", "1", "--json", "--store", place).stdout)["irregular"]
    assert found["kind"] == "slow"
    assert "its task  slower since " in run("show", "1", "--store", place).stdout
