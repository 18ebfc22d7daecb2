"""`peerwatch suspects`: stacks, plan and standby from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from store.schema.sample import Batch, Sample
from store.sqlite.embedded import Embedded
from tests.cli.conftest import SECOND, host, one_line, run

END = 1_790_000_000 * SECOND
DAY = 86_400 * SECOND


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Eight machines with one rank each, in pairs; the rank of m5 is elsewhere in three of five rounds."""
    path = tmp_path / "s.db"
    store = Embedded(path)
    for n in range(8):
        name, batches = f"m{n}", []
        for slot, (comm, ranks) in enumerate((("c0ffee00", 8.0), (f"abba{n // 2:04}", 2.0))):
            row = {"gpu": "0", "slot": str(slot), "pid": 40.0 + n, "comm": comm, "rank": float(n), "ranks": ranks}
            batches.append(Batch(name, END - 70 * SECOND, (Sample("nccl", row),)))
        for nth in range(5):
            frame = "recv (socket.py:7)" if n == 5 and nth in (0, 2, 3) else "matmul (layer.py:41)"
            row = {"gpu": "0", "pid": 40.0 + n, "form": "python", "stack": frame, "round": nth + 1.0}
            batches.append(Batch(name, END - (60 - 10 * nth) * SECOND, (Sample("stack", row),)))
        store.write([*batches, host(name, END, 0.5), host(name, END - 26 * DAY, 0.5)])
    for nth, back in enumerate((25.0, 21.5, 20.0, 13.0, 6.5)):
        at, name = END - round(back * DAY), f"m{nth}"
        values: dict[str, Any] = {"task": "t1", "kind": "evidence", "metric": "event.xid", "since": at, "score": 3.5}
        store.write([Batch(name, at, (Sample("verdict", {**values, "level": "crit", "message": "is lost"}),))])
        store.write([Batch(name, at + DAY, (Sample("verdict", {**values, "level": "ok", "message": "is well"}),))])
    store.close()
    return path


def test_stacks_name_the_group(place: Path) -> None:
    """The pipeline of the outlier is suspected as a whole, with the command that tests it."""
    done = run("suspects", "stacks", "--store", place)
    assert done.stdout.splitlines() == [
        "m5: its stacks differ from all others in 3 of 5 rounds",
        "suspects: m4, m5, which share communicator abba0002 (flagged in 3 of 5 rounds)",
        "test them: peerwatch check m4 m5",
    ]
    shown = json.loads(run("suspects", "stacks", "--json", "--store", place).stdout)
    assert (shown["machines"], shown["outliers"], shown["sure"]) == (["m4", "m5"], {"m5": 3}, True)
    assert "take them with --take" in one_line(run("suspects", "stacks", "--since", "1s", "--store", place), 1)


def test_plan_goes_from_groups_to_the_machine() -> None:
    """The plan tests the horizontal groups, then the vertical ones, then the machine in both failing groups."""
    words = ("suspects", "plan", "m[08-31]", "--pipeline", "4", "--json")
    first = json.loads(run(*words).stdout)
    assert (first["phase"], first["groups"][3]) == ("horizontal", ["m20", "m21", "m22", "m23"])
    assert first["gpu_hours"] == 2 * 15 / 60 * 24 * 8
    second = json.loads(run(*words, "--horizontal", "3").stdout)
    assert (second["phase"], second["groups"][1]) == ("vertical", ["m09", "m15", "m21", "m27"])
    last = json.loads(run(*words, "--horizontal", "3", "--vertical", "1").stdout)
    assert (last["phase"], last["evict"]) == ("done", ["m21"])
    assert "evict: m21" in run(*words[:-1], "--horizontal", "3", "--vertical", "1").stdout
    assert "no group numbers" in one_line(run(*words, "--horizontal", "x"), 1)
    assert "no group 9" in one_line(run(*words, "--horizontal", "9", "--vertical", "1"), 1)
    for said, *wrong in (
        ("no group 24: they are numbered from 0 to 23", "--horizontal", "24"),
        ("--vertical needs --horizontal", "--vertical", "1"),
        ("m09 is named twice", "m09"),
    ):
        assert said in one_line(run("suspects", "plan", "m[08-31]", *wrong), 1)
    assert run("suspects", "plan", "m[08-31]", "--minutes", "inf").returncode == 2
    assert "are not whole pipelines" in one_line(run("suspects", "plan", "a", "b", "c", "--pipeline", "2"), 1)


def test_standby_from_the_own_past(place: Path) -> None:
    """The incidents of the fleet give the spares; a repair time that the past does not carry is refused."""
    shown = json.loads(run("suspects", "standby", "--repair", "2d", "--json", "--store", place).stdout)
    assert (shown["incidents"], shown["machines"], shown["repair_hours"]) == (5, 8, 48.0)
    assert shown["chance"] == pytest.approx(1 - 2.718281828 ** (-5 / (26 * 8) * 2), rel=0.01)
    assert shown["binomial"] == 2
    assert shown["bursts"] >= 2
    assert "warm standbys for 8 machines" in run("suspects", "standby", "--store", place).stdout
    assert "needs 864 h of history" in one_line(run("suspects", "standby", "--repair", "9d", "--store", place), 1)


def test_a_range_that_is_none_is_one_line() -> None:
    """A name with brackets that are no range is refused, and not taken for a machine."""
    assert "m[1-] is no range of machines" in one_line(run("suspects", "plan", "m[1-]"), 1)
