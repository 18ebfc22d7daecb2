"""`peerwatch train-minder`, and the model in `peerwatch evaluate --minder-model`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.cli.conftest import one_line, run


def test_a_model_is_trained_and_used(tmp_path: Path) -> None:
    """The output names the metrics in order; recordings without a table that the model knows are refused."""
    small = tmp_path / "set" / "small"
    words = ("--machines", 4, "--gpus", 1, "--minutes", 2, "--fault", "none")
    assert run("simulate", small, *words).returncode == 0
    model = tmp_path / "model.npz"
    done = run("train-minder", tmp_path / "set", "--output", model, "--denoiser", "components")
    assert (done.returncode, "gpu.power_watts" in done.stdout, "1 recordings" in done.stdout) == (0, True, True)
    done = run("evaluate", small, "--methods", "minder,minder-integrated", "--minder-model", model)
    assert (done.returncode, done.stderr) == (0, "")
    np.savez(tmp_path / "js.npz", test=np.ones((6, 60, 2)), label=np.zeros((6, 60), np.uint8))
    assert run("import", "jumpstarter", tmp_path / "js.npz", tmp_path / "out").returncode == 0
    done = run("evaluate", tmp_path / "out", "--methods", "minder", "--minder-model", model)
    assert "the model knows none of the tables server" in one_line(done, 1)
    model.write_bytes(model.read_bytes()[:500])
    error = one_line(run("evaluate", small, "--methods", "minder", "--minder-model", model), 1)
    assert "no model of peerwatch train-minder, or damaged" in error


def test_what_cannot_be_trained_is_one_line(tmp_path: Path) -> None:
    """A folder without recordings, a task of three machines and an unwritable place are one line each."""
    assert "holds no recording" in one_line(run("train-minder", tmp_path, "--output", tmp_path / "m.npz"), 1)
    small = tmp_path / "small"
    assert run("simulate", small, "--machines", 3, "--gpus", 1, "--minutes", 1, "--fault", "none").returncode == 0
    assert "nothing to learn" in one_line(run("train-minder", small, "--output", tmp_path / "m.npz"), 1)
    assert "cannot be written" in one_line(run("train-minder", small, "--output", tmp_path), 1)
    words = ("train-minder", small, "--output", tmp_path / "m.npz", "--denoiser", "magic")
    assert "no denoiser is called magic" in one_line(run(*words), 1)
