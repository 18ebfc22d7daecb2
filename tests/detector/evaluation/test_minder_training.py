"""Minder's model: trained on recordings, written, read back safely, and used."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from detector.evaluation.minder_training import train
from detector.evaluation.outcome import Counting
from detector.evaluation.run import NAMES, evaluate
from detector.methods.baselines.minder_model import MinderModel, ModelError, load
from emulator.simulation.simulate import simulate
from store.transfer.export import write_recording


def recording(folder: Path, machines: int, minutes: float, fault: str, seed: int) -> Path:
    """A simulated fleet of one GPU a machine with its labels; a step of four seconds."""
    tables, labels = simulate(machines, minutes, 4.0, fault, seed, 1, ("host", "gpu", "task"))
    write_recording(folder, tables, labels)
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], MinderModel]:
    """Two recordings, one with a fault, and their model."""
    folder = tmp_path_factory.mktemp("trained")
    found = [recording(folder / kind, 5, 27, kind, seed) for kind, seed in (("none", 3), ("power_cap", 5))]
    return found, train(found, seed=7)


def test_equal_seeds_give_equal_models(trained: tuple[list[Path], MinderModel]) -> None:
    """Weights depend on recordings and seed alone."""
    found, model = trained
    assert np.array_equal(train(found, seed=7).each.encode, model.each.encode)
    assert not np.array_equal(train(found[:1], seed=8).each.encode, model.each.encode)


def test_the_tree_puts_telling_metrics_first(trained: tuple[list[Path], MinderModel]) -> None:
    """A power cap shows in power or clock, so one of them is asked first; without a fault the order is the paper's."""
    found, model = trained
    assert model.metrics[0] in ("gpu.power_watts", "gpu.sm_clock_hertz")
    assert len(model.metrics) == 7
    published = ("host.cpu_utilization_ratio", "gpu.duty_cycle_ratio", "gpu.power_watts")
    assert train(found[:1], "components").metrics[:3] == published
    assert train(found, "components", "paper").metrics[:3] == published


def test_a_model_comes_back_as_it_was_written(trained: tuple[list[Path], MinderModel], tmp_path: Path) -> None:
    """A model that was saved denoises windows as before; its file does not have numpy's ending."""
    model, file = trained[1], tmp_path / "model.bin"
    model.save(file)
    again, windows = load(file), np.random.default_rng(2).random((7, 9, 8))
    assert (again.metrics, again.origin) == (model.metrics, model.origin)
    assert np.array_equal(again.each.denoised(windows), model.each.denoised(windows))
    beside = windows.transpose(1, 0, 2).reshape(1, 9, -1)
    assert np.array_equal(again.joint.denoised(beside), model.joint.denoised(beside))


@pytest.mark.parametrize(
    ("denoiser", "names"),
    [
        ("perceptron", [n for n in NAMES if n not in ("minder-no-continuity", "distribution")]),
        ("components", ["minder"]),
    ],
)
def test_an_easy_fault_is_found_by_every_baseline(
    denoiser: str, names: list[str], trained: tuple[list[Path], MinderModel], tmp_path: Path
) -> None:
    """Every method with continuity finds a machine under a power cap for ten minutes in a fleet with all tables."""
    folder = recording(tmp_path / "r", 8, 30, "power_cap", 11)
    outcomes = evaluate(folder, names, Counting(), train(trained[0], denoiser))
    assert {one.method: [f.delay_s is not None for f in one.found] for one in outcomes} == {n: [True] for n in names}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"each_bias": np.zeros((7, 2))}, "each_encode is not finite or has shape"),
        ({"joint_after": np.full((1, 56), np.nan)}, "joint_after is not finite"),
        ({"format": 9}, "its format is 9"),
        ({"metrics": np.array([{"a": 1}], object)}, "Object arrays cannot be loaded"),
        ({"origin": "[1, 2"}, "Expecting"),
        ({"each_decode": np.zeros((2000, 2000))}, "larger unpacked than a model can be"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_damaged_model_is_refused(
    change: dict[str, Any], words: str, trained: tuple[list[Path], MinderModel], tmp_path: Path
) -> None:
    """One line names the file and what is wrong; nothing in the file is run."""
    file = tmp_path / "model.npz"
    trained[1].save(file)
    np.savez(file, **(dict(np.load(file)) | change))
    with pytest.raises(ModelError, match=rf"^[^\n]*model\.npz[^\n]*{words}[^\n]*$"):
        load(file)


@pytest.mark.parametrize("content", [b"nonsense", pickle.dumps({"format": 1}), json.dumps({"format": 1}).encode()])
def test_what_is_no_archive_is_refused(content: bytes, tmp_path: Path) -> None:
    """Text, pickles and absent files are refused."""
    file = tmp_path / "model.npz"
    with pytest.raises(ModelError, match=r"model\.npz does not exist"):
        load(file)
    file.write_bytes(content)
    with pytest.raises(ModelError, match=r"model\.npz is no model of peerwatch train-minder"):
        load(file)
