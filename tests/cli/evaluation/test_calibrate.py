"""`peerwatch calibrate`, and the configuration that names its file."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import one_line, run
from tests.cli.data.test_replay import fleet
from tests.cli.evaluation.test_evaluate import labelled


def test_from_recording_to_configuration(tmp_path: Path) -> None:
    """The detector uses the file that the command wrote, and refuses a damaged one by name."""
    for name in ("a", "b"):
        fleet(tmp_path / "set" / name, None)
    file, config = tmp_path / "c.json", tmp_path / "p.toml"
    words = ("calibrate", tmp_path / "set", "--budget", "1/day/10 machines", "--out", file)
    shown_json = json.loads(run(*words, "--json").stdout)
    assert (shown_json["recordings"], set(shown_json["tables"]), shown_json["beyond"] > 50) == (2, {"gpu"}, True)
    shown = run(*words).stdout
    assert f"one false alarm in 240 machine-hours needs {shown_json['beyond']:,.0f} times as many" in shown
    config.write_text(f'[detector]\ncalibration = "{file}"\n')
    done = run("replay", fleet(tmp_path / "slow", "m5"), "--json", "--config", config)
    assert {json.loads(line)["machine"] for line in done.stdout.splitlines()} == {"m5"}
    file.write_text("{}")
    said = one_line(run("replay", tmp_path / "slow", "--config", config), 1)
    assert f"{file} is no calibration" in said


def test_refusals(tmp_path: Path) -> None:
    """A labelled fault, too little health, no recording and no budget are one line each, and no file is written."""
    out = tmp_path / "c.json"
    faulty, short = labelled(tmp_path / "faulty", "m5"), fleet(tmp_path / "short", None)
    for words, said in (
        ((faulty,), "its labels tell of slow_gpu"),
        ((short,), "machine-hours cannot be distinguished from"),
        ((tmp_path, "--budget", "soon"), "'soon' is no budget"),
        ((tmp_path / "absent",), "holds no recording"),
    ):
        assert said in one_line(run("calibrate", *words, "--out", out), 1)
    assert not out.exists()
