"""`peerwatch status`: levels, exit codes, readings."""

from __future__ import annotations

import json
import time
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from cli.standing import standing
from cli.status import fitting, table
from store.embedded import Embedded
from store.sample import Batch, Sample
from tests.cli.conftest import SECOND, host, one_line, run, verdict


def test_all_is_well(place: Path) -> None:
    """Fresh readings and no verdict: 0, a row for each machine, and no open verdict."""
    done = run("status", "--store", place)
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()[1:4]] == ["m01", "m02", "m03"]
    assert "ok: 3 machines, 0 open verdicts" in done.stdout


@pytest.mark.parametrize(("level", "code"), [("warn", 1), ("crit", 2), ("ok", 0)])
def test_exit_code_follows_the_verdicts(place: Path, level: str, code: int) -> None:
    """The worst open verdict sets the exit code; a machine that was cleared is well again."""
    store = Embedded(place)
    now = time.time_ns()
    store.write([verdict("m02", now - 90 * SECOND, "crit"), verdict("m02", now - 30 * SECOND, level)])
    store.close()
    done = run("status", "--json", PEERWATCH_STORE=str(place))
    found = json.loads(done.stdout)
    assert (done.returncode, found["level"]) == (code, level)
    assert {row["machine"]: row["level"] for row in found["machines"]} == {"m01": "ok", "m02": level, "m03": "ok"}
    assert [row["message"] for row in found["verdicts"]] == (["m02 differs"] if code else [])


def test_a_large_fleet(tmp_path: Path) -> None:
    """Of many machines those that are not ok are listed, the worst first, and the rest is counted; --all lists it."""
    store, now = Embedded(tmp_path / "s.db"), time.time_ns()
    names = [f"m{n:03}" for n in range(97)]
    store.write([host(name, now - (190 if name == "m003" else 20) * SECOND, 0.3) for name in names])
    store.write([verdict("m090", now - 70 * SECOND, "crit"), verdict("m005", now - 80 * SECOND, "warn")])
    store.close()
    words = "status", "--silent", "110s", "--store", tmp_path / "s.db"
    lines = run(*words).stdout.splitlines()
    assert [line.split()[:2] for line in lines[1:4]] == [["m090", "crit"], ["m005", "warn"], ["m003", "unknown"]]
    assert lines[4] == "not listed: 94 ok; --all lists every machine"
    assert lines[5].startswith("crit: m090 differs (for ")
    assert lines[-1].endswith("silent: m003")
    assert [line.split()[0] for line in run(*words, "--all").stdout.splitlines()[1:98]] == names
    assert len(json.loads(run(*words, "--json").stdout)["machines"]) == 97


def test_a_fleet_gone_silent(tmp_path: Path) -> None:
    """Where most are silent, or many accused, a screen holds what is said, and all are counted."""
    store, now = Embedded(tmp_path / "s.db"), time.time_ns()
    names = [f"m{n:03}" for n in range(83)]
    store.write([host(name, now - (5 if name == "m082" else 90) * SECOND, 0.3) for name in names])
    store.write([verdict(name, now - 60 * SECOND, "warn") for name in names[:44]])
    store.close()
    lines = run("status", "--store", tmp_path / "s.db").stdout.splitlines()
    assert lines[41] == "not listed: 4 warn, 38 unknown, 1 ok; --all lists every machine"
    assert lines[82] == "4 more open verdicts; --all has them"
    assert lines[83].endswith("silent: m044, m045, m046, m047, m048, m049, m050, m051 … (38 in all)")
    assert len(lines) == 84


@given(
    st.lists(st.text("abc ", min_size=1).map(lambda head: " ".join(head.split()) or "a"), min_size=3, max_size=9),
    st.integers(1, 90),
    st.integers(0, 19),
)
def test_a_narrow_terminal(heads: list[str], width: int, cell: int) -> None:
    """What is shown is shown whole: the first columns, three at least, as many as fit, all if all do."""
    columns = [[head, "x" * cell] for head in heads]
    shown = fitting(columns, width)
    wide = [max(len(line) for text in column for line in text.split("\n")) for column in shown]
    assert [column[0].replace("\n", " ") for column in shown] == heads[: len(shown)]
    assert len(shown) == 3 or sum(wide) + 2 * len(wide) - 2 <= width
    if sum(max(len(head), cell) for head in heads) + 2 * len(heads) - 2 <= width:
        assert shown == columns


def test_names_are_whole_on_a_narrow_terminal(tmp_path: Path) -> None:
    """A long name, its level and the time are not cut where a terminal is narrow; readings that fit stand beside."""
    store, name = Embedded(tmp_path / "s.db"), "rack-07-slot-283"
    store.write([host(name, n * SECOND, n / 100, n) for n in (60, 80)])
    found = standing(store, 82 * SECOND, 30 * SECOND)
    store.close()
    screen = Console(width=40, file=StringIO())
    screen.print(table(found, screen.width))
    lines = screen.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert lines[-1].split() == [name, "ok", "2", "s", "ago", "0.7"]
    assert max(map(len, lines)) <= 40


def test_readings(tmp_path: Path) -> None:
    """Readings are means of the last half minute over devices, and nothing that was not read is there."""
    store = Embedded(tmp_path / "s.db")
    store.write([host("m1", n * SECOND, n / 100) for n in (10, 60, 80)])
    found = standing(store, 85 * SECOND, 30 * SECOND).machines["m1"]
    store.close()
    assert found.age_s == 5.0
    assert found.readings == pytest.approx({"cpu_ratio": 0.7, "gpu_watts": 300.7, "gpu_busy_ratio": 0.35})


def test_who_has_no_peers(place: Path) -> None:
    """Who is compared with nobody is told in words and in the object, as the detector said it last."""
    store, now = Embedded(place), time.time_ns()
    reason = "fewer than 4 of its kind by host"
    for machine, code, back in (("m01", "no_peers", 50), ("m02", "no_peers", 40), ("m01", "peers", 30)):
        values = {"source": "detector", "code": code, "severity": "info", "message": reason}
        store.write([Batch(machine, now - back * SECOND, (Sample("event", values),))])
    store.close()
    assert f"no peers: m02: {reason}; there only hard evidence speaks" in run("status", "--store", place).stdout
    found = json.loads(run("status", "--json", "--store", place).stdout)
    assert found["without_peers"] == [{"machine": "m02", "reason": reason}]


def test_silence(tmp_path: Path) -> None:
    """One silent machine among others is a warning; if all are silent nothing is known."""
    store = Embedded(tmp_path / "s.db")
    store.write([host("m1", 20 * SECOND, 0.5), host("m2", 70 * SECOND, 0.25)])
    some, none = (standing(store, at * SECOND, 30 * SECOND) for at in (75, 170))
    store.close()
    assert (some.level, some.machines["m1"].level, some.machines["m2"].level) == ("warn", "unknown", "ok")
    assert (none.level, none.newest) == ("unknown", 70 * SECOND)


def test_nothing_to_read(tmp_path: Path) -> None:
    """An empty store, an absent one, a wrong file: 3, and what to do."""
    Embedded(tmp_path / "empty.db").close()
    done = run("status", "--store", tmp_path / "empty.db")
    assert (done.returncode, "holds no reading; start the agent" in done.stdout) == (3, True)
    assert "is the agent running" in one_line(run("status", "--store", tmp_path / "absent.db"), 3)
    (tmp_path / "text.db").write_text("no database\n" * 100)
    assert "is not an SQLite file" in one_line(run("status", "--store", tmp_path / "text.db"), 3)
    assert "is no duration" in one_line(run("status", "--store", tmp_path / "empty.db", "--silent", "soon"), 3)
