"""`peerwatch simulate`."""

from __future__ import annotations

import json
from pathlib import Path

from store.recording import Recording
from tests.cli.conftest import one_line, run

SMALL = ("--machines", "6", "--minutes", "4", "--gpus", "2", "--fault", "slow_gpu")


def test_a_recording_with_its_label(tmp_path: Path) -> None:
    """The fleet has the size that was asked for, the label says what is wrong, and the seed repeats it."""
    done = run("simulate", tmp_path / "a", *SMALL, "--seed", "3")
    assert (done.returncode, "slow_gpu on" in done.stdout) == (0, True), done.stderr
    assert run("simulate", tmp_path / "b", *SMALL, "--seed", "3").returncode == 0
    labels = json.loads((tmp_path / "a" / "labels.json").read_text())
    assert (labels["machines"], labels["step_seconds"], len(labels["faults"])) == (6, 1.0, 1)
    first, second = (Recording(tmp_path / name).read("gpu") for name in "ab")
    assert first.equals(second)
    assert len(first.column("machine").unique()) == 6
    assert labels["faults"][0]["machine"] in first.column("machine").unique().to_pylist()


def test_refusals(tmp_path: Path) -> None:
    """The command refuses an unknown fault, a fleet of no machine, and a folder that has files."""
    assert "no fault is called gremlin" in one_line(run("simulate", tmp_path / "x", "--fault", "gremlin"), 1)
    assert run("simulate", tmp_path / "x", "--machines", "0").returncode == 2
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "mine.txt").write_text("mine")
    assert "is there already" in one_line(run("simulate", tmp_path / "there", *SMALL), 1)
    assert [path.name for path in tmp_path.iterdir()] == ["there"]
