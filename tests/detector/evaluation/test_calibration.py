"""Thresholds from healthy recordings: the tail, the budget, the file, and what is refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detector.calibration import (
    LEAST,
    MOST,
    Budget,
    Calibration,
    CalibrationError,
    budget_of,
    calibrated,
    load,
    save,
    settings_of,
    tail_of,
)
from detector.config import Config
from detector.engine.pipeline import Detector, walk
from detector.evaluation.calibrate import ExcursionPeaks, Studied, calibrate, follow
from detector.methods.contract import Excursions

Make = Callable[..., pa.Table]


def test_what_is_no_plain_file_is_not_read(tmp_path: Path) -> None:
    """A device without end, a pipe or a file of megabytes is refused before it is read."""
    large = tmp_path / "large.json"
    large.write_bytes(b" " * 1_300_000)
    os.mkfifo(tmp_path / "pipe")
    for file in (Path("/dev/zero"), large, tmp_path / "pipe"):
        with pytest.raises(CalibrationError, match=r"is no file of at most 1000000 bytes; make it again"):
            load(file)


def test_a_budget_in_plain_words() -> None:
    """The rate is alarms by machine-hour; a text that is no budget is refused with an example."""
    assert budget_of("1/week/1000 machines").rate == pytest.approx(1 / 168_000)
    assert budget_of("3/day/2,000").rate == pytest.approx(3 / 48_000)
    for wrong in ("1/fortnight/10", "0/week/7", "2/week/0 machines", "often"):
        with pytest.raises(ValueError, match="is no budget: write for instance 1/week/1000 machines"):
            budget_of(wrong)


@given(st.integers(0, 10**6))
def test_the_bar_keeps_the_budget(seed: int) -> None:
    """Exponential peaks exceed the bar more seldom than the budget allows, also beyond what it was learned from."""
    rng = np.random.default_rng(seed)
    hours, scale, rate = 40.0, 0.05, 0.02
    tail = tail_of(rng.exponential(scale, 700), hours, rate)
    exceeded = 700 / hours * np.exp(-tail.caution / scale)  # a machine-hour
    assert LEAST <= tail.caution < 1
    assert exceeded < 3 * rate


def test_bounds_of_the_bar() -> None:
    """Recordings almost without evidence halve the threshold; evidence that lasts for hours gives no threshold."""
    peaks = np.linspace(0.001, 0.004, 31)
    assert tail_of(peaks, 90.0, 1e-3).caution == LEAST
    with pytest.raises(CalibrationError, match="times the usual evidence, more than 8 is not allowed"):
        tail_of(3000 * peaks, 90.0, 1e-3)
    assert tail_of(np.zeros(0), 90.0, 1e-3).caution == 1.0
    assert [tail_of(np.array([peak, 0.2]), 90.0, 1e-3).caution for peak in (0.3, 0.8, 5.0)] == [1.0, 1.6, MOST]


def test_peaks_that_scatter_more_than_an_exponential() -> None:
    """Peaks that scatter more than an exponential mark the tail as heavy."""
    rng = np.random.default_rng(3)
    assert not tail_of(rng.exponential(0.02, 400), 60.0, 1e-2).heavy
    assert tail_of(0.004 * rng.pareto(1.2, 400), 60.0, 1.0).heavy


def excursions(machine: list[int], evidence: list[float], machines: int) -> Excursions:
    """The evidence of a step on some of so many machines, all of which were judged."""
    return Excursions("meter", np.array(machine), np.array(evidence), np.arange(machines), machines)


def test_an_excursion_lasts_until_nothing_is_left() -> None:
    """The peak of an excursion is its highest evidence against one machine; one under way counts too."""
    found = ExcursionPeaks()
    for machines, weights in (([0, 0, 2], [0.1, 0.3, 0.2]), ([0], [0.7]), ([0, 2], [0.4, 0.5]), ([2], [0.6])):
        found.add(excursions(machines, weights, 3), 1.0)
    assert found.found().tolist() == pytest.approx([0.2, 0.7, 0.6])


def healthy(fleet: Make, memory: Any, seed: int = 11) -> Any:
    """Readings with harmless jumps of half a minute on one machine after the other."""

    def jump(values: np.ndarray) -> None:
        for at, start in enumerate(range(200, 1100, 60)):
            values[start : start + 20 + at, at % 7] += 25

    return memory({"meter": fleet("power_watts", machines=7, steps=1200, bend=jump, seed=seed)})


_STUDIED: list[Studied] = []


@pytest.fixture
def studied(fleet: Make, memory: Any) -> Studied:
    """What such readings teach; they are replayed once."""
    if not _STUDIED:
        _STUDIED.append(follow(healthy(fleet, memory), Config(), "r", lambda _: None))
    return _STUDIED[0]


def test_a_detector_begins_with_what_recordings_have_taught(
    memory: Any, fleet: Make, studied: Studied, tmp_path: Path
) -> None:
    """The file has excursions and the threshold that they teach, and a detector has it from the start."""
    config, file = Config(), tmp_path / "c.json"
    assert studied.tables["meter"].hours.max() == pytest.approx(
        7 * (1200 - config.comparability_steps) / 3600, rel=0.02
    )
    learned = calibrate([studied], Budget(1, 24, 10), config)
    stream = learned.tables["meter"]["power_watts"]
    assert (len(stream.peaks) >= 15, len(set(stream.machines))) == (True, 7)
    assert stream.multiplier > 1.05
    save(learned, file)
    assert load(file) == learned
    detector = Detector(calibrated(replace(config, calibration=str(file))))
    for now, rows in list(walk(memory({"meter": fleet("power_watts", machines=7, steps=70)}))):
        detector.step(now, rows)
    found = detector.state.thresholds
    assert found.tables["meter"].history.hours[:, 0].sum() >= stream.hours
    assert found.learned["meter"].multiplier[0] > 1.05


def test_recordings_are_added_up(studied: Studied) -> None:
    """Two recordings have the hours and the excursions of both, and machines of one name in both are two machines."""
    one, both = (calibrate([studied] * count, Budget(1, 24, 10), Config()) for count in (1, 2))
    once, twice = (found.tables["meter"]["power_watts"] for found in (one, both))
    assert (twice.hours, both.recordings) == (pytest.approx(2 * once.hours), 2)
    assert sorted(twice.peaks) == sorted(2 * once.peaks)
    assert (len(set(once.machines)), len(set(twice.machines))) == (7, 14)


def test_silence_is_no_health(memory: Any, fleet: Make) -> None:
    """A day in which nothing was read counts for nothing."""
    first = fleet("power_watts", machines=5, steps=400)
    later = first.set_column(0, "time", [pa.array(np.asarray(first["time"]) + 86_400 * 10**9)])
    found = follow(memory({"meter": pa.concat_tables([first, later])}), Config(), "r", lambda _: None)
    assert found.tables["meter"].hours.max() < 5 * 1200 / 3600


def test_machines_that_leave() -> None:
    """Excursions of the machines that stay are not lost when others leave."""
    found = ExcursionPeaks()
    found.add(excursions([1, 2], [0.3, 0.5], 3), 1.0)
    found.add(excursions([1], [0.2], 2), 1.0)
    assert found.found().tolist() == pytest.approx([0.3, 0.5, 0.2])


def test_a_fault_is_no_health(memory: Any, fleet: Make) -> None:
    """A machine that stands out until the end is named, and the recording refused."""

    def leave(values: np.ndarray) -> None:
        values[200:, 2] += 60

    store = memory({"meter": fleet("power_watts", machines=7, steps=900, bend=leave)})
    with pytest.raises(CalibrationError, match=r"somewhere is not healthy, leave it out: m2: meter\.power_watts "):
        follow(store, Config(), "somewhere", lambda _: None)


def test_too_little_for_the_budget(studied: Studied) -> None:
    """The error says how many machine-hours are missing for the budget."""
    with pytest.raises(CalibrationError, match=r"one false alarm in 168,000 .* record 168 machine-hours of health"):
        calibrate([studied], Budget(1, 168, 1000), Config())


def test_a_file_that_cannot_be_meant(tmp_path: Path) -> None:
    """Each mistake is one line with the file and the command that mends it."""
    file = tmp_path / "c.json"
    config = Config(calibration=str(file))
    good = Calibration(3, Budget(1, 168, 10), 2, 70.5, settings_of(Config()), {"gpu": tail_of(np.zeros(0), 9, 1)}, {})
    made: dict[str, Any] = msgspec.to_builtins(good)
    tail = made["tails"]["gpu"]
    for text, said in (
        (b"{", "is no calibration: Input data was truncated"),
        (b"\xff\xfe", "is no calibration"),
        (msgspec.json.encode({**made, "version": 7}), "was made by another version"),
        (msgspec.json.encode({**made, "tails": {"gpu": {**tail, "caution": 900.0}}}), "is no calibration: Expected"),
        (
            msgspec.json.encode({**made, "settings": {**made["settings"], "cusum_gain_nats": 3.5}}),
            r"gain_nats was 3.5, now",
        ),
    ):
        file.write_bytes(text)
        with pytest.raises(CalibrationError, match=said) as caught:
            calibrated(config)
        assert f"make it again: peerwatch calibrate RECORDING --out {file}" in str(caught.value)
        assert "\n" not in str(caught.value)
    file.unlink()
    with pytest.raises(CalibrationError, match="No such file"):
        calibrated(config)


def test_caution_by_hand(tmp_path: Path) -> None:
    """The caution of the settings outweighs the file's, and has bounds."""
    file = tmp_path / "c.json"
    tail = replace_caution(tail_of(np.zeros(0), 9, 1), 2.5)
    save(Calibration(3, Budget(1, 168, 10), 2, 70.5, settings_of(Config()), {"gpu": tail, "rdma": tail}, {}), file)
    assert calibrated(Config(calibration=str(file), threshold_multipliers={"rdma": 1.5})).threshold_multipliers == {
        "gpu": 2.5,
        "rdma": 1.5,
    }
    with pytest.raises(
        CalibrationError, match=r"detector.threshold_multipliers.gpu is 40: it must lie between 0.5 and 8"
    ):
        calibrated(Config(threshold_multipliers={"gpu": 40.0}))


def replace_caution(tail: Any, caution: float) -> Any:
    """The same tail with another verdict."""
    return msgspec.structs.replace(tail, caution=caution)
