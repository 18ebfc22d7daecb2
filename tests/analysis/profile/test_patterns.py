"""Functions that behave otherwise in one rank: from samples made by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from agent.stacks.sampled import SampleError
from analysis.profile.patterns import abnormal, differing, patterns
from analysis.profile.samples import Samples, read_samples
from detector.stats.arrays import Ints

STEP, AUGMENT, COLLECT = range(3)
NAMES = ("step (train.py)", "augment (data.py)", "collect (gc)")
CLASSES = ("python", "python", "gc")


def samples(*shares: float, collecting: float = 0.0) -> Samples:
    """Ten seconds at 50 Hz: each rank spends so much in `augment`, in every second, the rest in `step`."""
    seen: list[Ints] = []
    for share in shares:
        second = np.full(50, STEP)
        second[: round(50 * share)] = AUGMENT
        second[49 - round(50 * collecting) : 49] = COLLECT
        seen.append(np.tile(second, 10))
    return Samples(tuple(f"rank {at}" for at in range(len(shares))), NAMES, CLASSES, tuple(seen), 10.0)


def test_a_pattern_is_share_mean_and_deviation() -> None:
    """A function that runs in one stretch of three seconds has its full use there, and the share of the window."""
    seen = np.full(500, STEP)
    seen[100:250] = AUGMENT
    found = patterns(Samples(("rank 0",), NAMES, CLASSES, (seen,), 10.0)).values
    assert found[0, AUGMENT].tolist() == pytest.approx([0.3, 1.0, 0.0])
    assert found[0, STEP, 0] == pytest.approx(0.7)


def test_a_function_slowed_in_one_rank_is_found() -> None:
    """One rank of five that spends half of its time in a function differs from all peers; they do not."""
    first = abnormal(patterns(samples(0.1, 0.12, 0.55, 0.1, 0.08)))[0]
    assert (first.function, first.rank, first.delta) == ("augment (data.py)", "rank 2", 1.0)
    assert (first.beta, first.usual) == pytest.approx((0.55, 0.1), abs=0.02)


def test_ranks_that_are_alike_are_normal() -> None:
    """Small differences between ranks are none."""
    assert abnormal(patterns(samples(0.1, 0.12, 0.14, 0.1, 0.08))) == []
    assert not differing(patterns(samples(0.1, 0.12, 0.14)).values).any()


def test_two_ranks_cannot_tell_who_is_odd() -> None:
    """Of two ranks that differ neither is named."""
    assert abnormal(patterns(samples(0.1, 0.9))) == []


def test_collections_of_all_ranks_are_more_than_expected() -> None:
    """Garbage collection of more than a hundredth is abnormal even where all ranks do it."""
    found = abnormal(patterns(samples(0.1, 0.1, 0.1, collecting=0.1)))
    assert [(one.kind, one.rank) for one in found] == [("gc", "rank 0"), ("gc", "rank 1"), ("gc", "rank 2")]


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"shared": {"frames": []}, "profiles": []}',
     '{"shared": {"frames": []}, "profiles": [{"name": "MainThread", "samples": [[7]]}]}'],
)  # fmt: skip
def test_a_wrong_file_is_one_line(tmp_path: Path, text: str) -> None:
    """What is no file of samples, has none, or points beyond its frames is refused by its name."""
    place = tmp_path / "samples.json"
    place.write_text(text)
    with pytest.raises(SampleError, match=r"samples\.json"):
        read_samples({"rank 0": place})


def test_the_main_thread_counts(tmp_path: Path) -> None:
    """Of several threads the main one is read; a function's class comes from its whole stack."""
    frames = [{"name": name, "file": f"/x/{name}.py"} for name in ("main", "_next_data", "wait")]
    threads = [
        {"name": 'Thread 1 "Helper"', "samples": [[2]] * 9},
        {"name": 'Thread 2 "MainThread"', "samples": [[0, 1, 2], [0]]},
    ]
    place = tmp_path / "s.json"
    place.write_text(json.dumps({"shared": {"frames": frames}, "profiles": threads}))
    found = read_samples({"rank 0": place})
    assert (found.functions, found.classes) == (("wait (wait.py)", "main (main.py)"), ("loader", "python"))
    assert found.seen[0].tolist() == [0, 1]
