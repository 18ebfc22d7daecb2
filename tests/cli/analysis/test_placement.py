"""`peerwatch placement`: spread, advice and shared switches of a store, and errors of one line."""

from __future__ import annotations

import json
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cli.queries.analysis.shared_switch import switch_notes
from detector.model.verdict import Verdict
from store.open import open_store
from store.schema.sample import Batch, Sample
from tests.cli.conftest import one_line, run, verdict

MACHINES = 8
PAIRS = {f"bb{at:02x}": (at, at + 4) for at in range(4)}
"""Communicator -> the numbers of its two machines: four apart, so each pair is over two leaves of four."""


def rows(machine: int, at: int) -> tuple[Sample, ...]:
    """One reading of a machine of one rank: the world and its pair."""
    out = []
    for slot, (comm, ranks) in enumerate({"ffff": tuple(range(MACHINES)), **PAIRS}.items()):
        if machine in ranks:
            values: dict[str, Any] = {"gpu": "0", "slot": str(slot), "comm": comm, "ranks": len(ranks), "pid": 900}
            values |= {"rank": ranks.index(machine), "operation": "AllReduce:f32:9", "operations_total": 20.0 * at}
            out.append(Sample("nccl", {**values, "bytes_total": 5e7 * at, "send_pending_ratio": 0.25}))
    return tuple(out)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight machines in four data groups over both leaves, read a moment ago; those of leaf two have verdicts."""
    place, now = tmp_path_factory.mktemp("store") / "readings.db", time.time_ns()
    with closing(open_store(str(place), create=True)) as opened:
        for at in range(8):
            opened.write([Batch(f"m{m}", now - (10 - at) * 10**9, rows(m, at)) for m in range(MACHINES)])
        opened.write([verdict(f"m{m}", now - 20 * 10**9 + m, "crit") for m in range(4, 8)])
    return place


@pytest.fixture(scope="module")
def topology(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two leaves of four machines, and 56 more on others."""
    file = tmp_path_factory.mktemp("topology") / "topology.conf"
    file.write_text("SwitchName=one Nodes=m[0-3]\nSwitchName=two Nodes=m[4-7]\nSwitchName=top Switches=one,two\n")
    return file


def test_the_spread_and_a_better_placement(store: Path, topology: Path) -> None:
    """A leaf of faulty machines comes first; the advice puts every group on one leaf, in as few moves as pairs."""
    done = run("placement", "--store", store, "--topology", topology)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("4 of 4 machines on leaf two are faulty (m4, m5, m6, m7): suspect the switch")
    assert "8 machines on 2 leaves in 1 pod" in done.stdout
    assert "data: groups over several leaves 4 -> 0 of 4" in done.stdout
    assert "a better placement takes away 100%" in done.stdout
    assert done.stdout.count("ranks of m") == 4


def test_as_json(store: Path, topology: Path) -> None:
    """--json has every communicator, the moves and the switches that faulty machines share."""
    found = json.loads(run("placement", "--store", store, "--topology", topology, "--json").stdout)
    pair = next(one for one in found["communicators"] if one["communicator"] == "bb02")
    assert (pair["kind"], pair["machines"]) == ("data", ["m2", "m6"])
    assert (pair["leaves"], pair["pods"]) == (["one", "two"], ["top"])
    assert pair["bytes_per_second"] == pytest.approx(5e7)
    (task,) = found["tasks"]
    assert task["advice"]["kinds"] == [
        {"kind": "data", "groups": 4, "over_leaves": {"now": 4, "then": 0}, "over_pods": {"now": 0, "then": 0}}
    ]
    assert len(task["advice"]["moves"]) == 4
    # Four of eight faulty, all on one leaf of four: 1 of 70 choices, times two leaves.
    (shared,) = found["shared_switches"]
    assert (shared["level"], shared["name"], shared["machines"]) == ("leaf", "two", 4)
    assert shared["chance"] == pytest.approx(2 / 70)


def test_errors_are_one_line(store: Path, topology: Path, tmp_path: Path) -> None:
    """A missing file, a missing topology and a store without communicators give one line and exit code 1."""
    wrong = tmp_path / "wrong.txt"
    wrong.write_text("nothing of use\n")
    assert "wrong.txt: no topology" in one_line(run("placement", "--store", store, "--topology", wrong), 1)
    assert "none.txt" in one_line(run("placement", "--store", store, "--topology", tmp_path / "none.txt"), 1)
    late = run("placement", "--store", store, "--topology", topology, "--at", "2020-05-01T12:00")
    assert "no communicator in the minute before" in one_line(late, 1)


def test_show_names_the_switch_that_faulty_machines_share(store: Path, topology: Path, tmp_path: Path) -> None:
    """With `topology` in the configuration, `show` and alerts name the leaf of faulty machines; without, nothing."""
    config = tmp_path / "peerwatch.toml"
    config.write_text(f'topology = "{topology}"\n')
    found = json.loads(run("show", "m5", "--store", store, "--config", config, "--json").stdout)["shared_switch"]
    assert (found["level"], found["name"], found["faulty"]) == ("leaf", "two", ["m4", "m5", "m6", "m7"])
    assert "switch    4 of 4 machines on leaf two" in run("show", "m5", "--store", store, "--config", config).stdout
    assert json.loads(run("show", "m5", "--store", store, "--json").stdout)["shared_switch"] is None
    (note,) = notes_of(store, str(topology))
    assert note.startswith("4 of 4 machines on leaf two are faulty")
    assert notes_of(store, "") == ()
    wrong = one_line(run("show", "m5", "--store", store, "--config", _config(tmp_path, "none.conf")), 1)
    assert "none.conf" in wrong


def notes_of(store: Path, topology: str) -> tuple[str, ...]:
    """What an alert about m6 says of switches."""
    with closing(open_store(str(store))) as opened:
        alert = Verdict(time.time_ns(), "run", "m6", None, "peer", "gpu.power_watts", 2.0, 0, "crit", "m6 differs")
        return switch_notes(topology)(opened, alert)


def _config(folder: Path, name: str) -> Path:
    file = folder / "wrong.toml"
    file.write_text(f'topology = "{folder / name}"\n')
    return file
