"""`peerwatch profile TASK`: agents of an emulated fleet sample all ranks in one window, and the slow one is named."""

from __future__ import annotations

import json
import time
from contextlib import closing
from pathlib import Path

import pytest

from cli.agent_process import agent_command
from emulator.cluster.fleet import Fleet
from store.open import open_store
from tests.cli.conftest import one_line, run

GPUS, SECONDS = 2, 5


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    """Three machines that train; the agents of two allow profiles."""
    allowed = tmp_path / "allowed.toml"
    allowed.write_text("[agent]\nprofile_seconds_per_hour = 7\n")
    config = {"m00": allowed, "m01": allowed, "m02": None}
    return Fleet(
        tmp_path / "fleet", 3, GPUS, 1, 1, 5,
        lambda name: agent_command(tmp_path / "s.db", config[name], tmp_path / "fleet" / name),
    )  # fmt: skip


def trained(place: Path) -> bool:
    """Whether all machines' communicators are in the store."""
    with closing(open_store(str(place), create=True)) as store:
        found = store.read("nccl", 0, time.time_ns(), ("comm", "iteration_seconds")).to_pylist()
    return len({(row["machine"], row["gpu"]) for row in found if row["iteration_seconds"]}) == 3 * GPUS


def test_one_window_of_all_machines(fleet: Fleet, tmp_path: Path) -> None:
    """The slow function is named with its rank, and an agent that allows no profile; a second window is refused."""
    place = tmp_path / "s.db"
    with fleet:
        deadline = time.monotonic() + 120
        while not trained(place):
            assert time.monotonic() < deadline, fleet.progress()
            time.sleep(0.5)
        fleet.inject("slow_host", "m01", 1, 0.4)
        (task,) = json.loads(run("tasks", "--json", "--store", place).stdout)["tasks"]
        done = run("profile", task["communicator"], "--seconds", str(SECONDS), "--json", "--store", place)
        again = one_line(run("profile", "m01", "--seconds", str(SECONDS), "--store", place), 1)
    found = json.loads(done.stdout)
    slow = [one for one in found["abnormal"] if one["function"] == "RunAheadRank.wait_for_batch (run_ahead.py)"]
    assert [one["rank"] for one in slow] == ["rank 3 (m01 gpu:1)"]
    assert slow[0]["beta"] > 0.3 > slow[0]["usual_beta"]
    assert sorted(found["samples"]) == [f"rank {rank} (m0{rank // 2} gpu:{rank % 2})" for rank in range(4)]
    assert set(found["readers"].values()) == {"py-spy"}
    assert "agent.profile_seconds_per_hour" in found["failed"]["m02"]
    assert 0 < found["cost"]["cpu_seconds"] / SECONDS / 4 < 0.5
    assert found["cost"]["iteration_seconds_during"] > 0
    assert "the budget of 7 s an hour is spent" in again
