"""Samples of a process as a row: packed and read again, and what a hostile row or file may not do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.stacks.sampled import MOST_FUNCTIONS, OTHER, Sampled, SampleError, read_perf, read_speedscope, unpacked


@given(st.lists(st.integers(0, 40), min_size=1, max_size=300))
def test_what_is_packed_is_read_again(seen: list[int]) -> None:
    """The functions of all samples are the same after packing, whatever their numbers are."""
    names = tuple(("python", f"f{number} (a b.py)") for number in range(41))
    row = Sampled(names, tuple(seen)).packed()
    again = unpacked(row["functions"], row["series"])
    assert [again.functions[number] for number in again.seen] == [names[number] for number in seen]


def test_seldom_functions_are_one() -> None:
    """Of more functions than a row may have the least seen are counted together, and the row stays small."""
    names = tuple(("wait", f"{'x' * 90}{number}") for number in range(500))
    seen = tuple(number for number in range(500) for _ in range(7 if number < MOST_FUNCTIONS else 1))
    row = Sampled(names, seen).packed()
    again = unpacked(row["functions"], row["series"])
    assert sum(again.functions[number] == ("python", OTHER) for number in again.seen) == 500 - MOST_FUNCTIONS
    assert len(row["functions"]) + len(row["series"]) < 16_000


@pytest.mark.parametrize("series", ["", "7", "0*99999", "0 -1", "0*0x3", "0*13000", "0,0", "9" * 40])
def test_a_hostile_row_is_refused(series: str) -> None:
    """What names no function, or more samples than a window has, is an error of one line."""
    with pytest.raises(SampleError, match="holds no samples") as caught:
        unpacked("wait f\npython g", series)
    assert "\n" not in str(caught.value)


def test_a_window_within_samples() -> None:
    """Samples outside of the shares are left out; shares beyond the ends are the ends."""
    sampled = Sampled((("wait", "f"),) * 20, tuple(range(20)))
    assert sampled.within(0.25, 0.6).seen == tuple(range(5, 12))
    assert sampled.within(-3.0, 2.0).seen == sampled.seen


def test_the_class_is_from_the_stack(tmp_path: Path) -> None:
    """A function has the class that its callers tell, and the file says how long the samples took."""
    frames = [{"name": name, "file": f"/opt/{name}.py"} for name in ("train", "_next_data", "read")]
    thread = {"name": 'Thread 9 "MainThread"', "samples": [[0, 1, 2], [0]], "weights": [0.02, 0.03]}
    (tmp_path / "s.json").write_text(json.dumps({"shared": {"frames": frames}, "profiles": [thread]}))
    found = read_speedscope(tmp_path / "s.json")
    assert found.functions == (("loader", "read (read.py)"), ("python", "train (train.py)"))
    assert (found.seen, found.seconds) == ((0, 1), 0.05)


def test_perf_has_a_function_where_the_thread_ran() -> None:
    """Samples are placed by their times; where there is none, or it lies outside, the thread was not on a CPU."""
    lines = [
        " 100.011:      7f11 ncclKernel+0x3c (/usr/lib/libnccl.so.2)\n",
        " 100.390:      4b21 [unknown] (/usr/bin/python3.11)\n",
        " 100.900:      4b22 beyond (/usr/bin/python3.11)\n",
        "nonsense\n",
    ]
    found = read_perf(lines, 100.0, 0.5, 10.0)
    named = [found.functions[number] for number in found.seen]
    idle = ("wait", "(not on a CPU)")
    assert named == [
        ("collective", "ncclKernel (libnccl.so.2)"),
        idle,
        idle,
        ("python", "[unknown] (python3.11)"),
        idle,
    ]
