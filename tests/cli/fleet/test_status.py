"""`peerwatch status`: levels, exit codes, readings."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from cli.queries.fleet_status import read_fleet_status
from cli.views.fleet_table import fitting, table
from detector.thresholds.report import LearningReport
from store.schema.sample import Batch, Sample
from store.signed import Signed, key_of
from store.sqlite.embedded import Embedded
from tests.cli.conftest import ROOT, SECOND, host, one_line, run, verdict


def test_all_is_well(place: Path) -> None:
    """Fresh readings without a verdict give exit code 0 and a row for each machine."""
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


def test_what_is_not_signed_hides_nothing(place: Path) -> None:
    """A forged verdict ends none that the detector has signed, and a forged order puts no machine into maintenance."""
    store, now = Embedded(place), time.time_ns()
    Signed(store, key_of(place.with_suffix(".key"), True)).write([verdict("m02", now - 60 * SECOND, "crit")])
    order = {"source": "operator", "code": "maintenance", "message": "idle", "until": now + 900 * SECOND}
    store.write([verdict("m02", now - 20 * SECOND, "ok"), Batch("m03", now - 5 * SECOND, (Sample("event", order),))])
    store.close()
    done = run("status", "--json", "--store", place)
    found = json.loads(done.stdout)
    assert (done.returncode, [row["level"] for row in found["verdicts"]]) == (2, ["crit"])
    assert {row["machine"]: row["level"] for row in found["machines"]} == {"m01": "ok", "m02": "crit", "m03": "ok"}
    assert found["maintenance"] == []


def test_what_probes_take_is_one_line(place: Path) -> None:
    """The machine with the process that loses the most is named with its cost and limit, and where probes are off."""
    now = time.time_ns()
    assert json.loads(run("status", "--json", "--store", place).stdout)["probes"] is None
    store = Embedded(place)
    for name, share, why in (
        ("m01", 0.002, ""),
        ("m03", 0.007, ""),
        ("m02", 0.004, "probes on its calls are suspended"),
        ("m04", 0.003, "probes on its launches are sampled, on 40% of the time"),
    ):
        cost = {"library": "probes: cost", "state": "on", "core_ratio": share, "reason": f"{share:.2%} of 3.00%"}
        library = {"library": "libnccl.so.2", "state": "on", "reason": why or None}
        store.write([Batch(name, now - 50 * SECOND, (Sample("probe", cost), Sample("probe", library)))])
    store.close()
    found = json.loads(run("status", "--json", "--store", place).stdout)["probes"]
    assert found == {"machine": "m03", "core_ratio": 0.007, "suspended": ["m02"], "sampled": ["m04"]}
    shown = " ".join(run("status", "--store", place).stdout.split())
    assert "probes: m03: 0.70% of 3.00%; some are suspended on m02; some are sampled on m04" in shown


def test_what_was_learned_is_one_line(place: Path) -> None:
    """The newest report on thresholds is a line, and an object with the numbers; an old one is none."""
    store, now = Embedded(place), time.time_ns()
    old = LearningReport(0.5, 2.5, 31, 0, 0, 0, 0, 0.012)
    store.write([Batch("d1", now - 2500 * SECOND, (old.sample(),))])
    assert json.loads(run("status", "--json", "--store", place).stdout)["thresholds"] is None
    new = LearningReport(0.5, 416.25, 1733, 58, 9, 17, 2, 0.676)
    store.write([Batch("d1", now - (900 - at) * SECOND, (one.sample(),)) for at, one in enumerate((old, new))])
    store.close()
    found = json.loads(run("status", "--json", "--store", place).stdout)["thresholds"]
    assert (found["machine_hours"], found["raised"], found["bounded"], found["trust"]) == (416.25, 9, 2, 0.676)
    shown = " ".join(run("status", "--store", place).stdout.split())
    assert "thresholds: learned from 1,733 excursions in 416.2 machine-hours for 0.5 false pages" in shown
    assert "of 58 readings 9 raised, 2 at the upper bound, 17 lowered; lower ones are used to 68%" in shown


def test_findings_4_4_cuda_graphs_are_said(place: Path) -> None:
    """Machines with operations that CUDA graphs replay are named, with what is then not counted."""
    now = time.time_ns()
    assert json.loads(run("status", "--json", "--store", place).stdout)["cuda_graphs"] == []
    store = Embedded(place)
    for name, before, replayed in (("m02", 0.0, 1.0), ("m03", 1.0, 1.0), ("m01", 1.0, 0.0)):
        key = {"gpu": "3", "slot": "0", "comm": "beef", "operations_total": 17}
        rows = [Sample("nccl", key | {"replayed": value}) for value in (before, replayed)]
        store.write([Batch(name, now - age * SECOND, (row,)) for age, row in zip((9, 4), rows, strict=True)])
    store.close()
    assert json.loads(run("status", "--json", "--store", place).stdout)["cuda_graphs"] == ["m02", "m03"]
    shown = " ".join(run("status", "--store", place).stdout.split())
    assert "m02, m03: CUDA graphs replay NCCL operations: calls are counted at the capture" in shown


def test_a_verdict_names_the_job(place: Path) -> None:
    """An open verdict is shown with the job that it was reached in, in words and as JSON."""
    store, batch = Embedded(place), verdict("m02", time.time_ns() - 40 * SECOND, "warn")
    (sample,) = batch.samples
    job = {"scheduler": "kubernetes", "namespace": "ml", "pod": "llama-worker-3"}
    store.write([replace(batch, samples=(replace(sample, values={**sample.values, **job}),))])
    store.close()
    shown = run("status", "--store", place).stdout
    assert ", Kubernetes ml/llama-worker, pod ml/llama-worker-3)" in shown
    (row,) = json.loads(run("status", "--json", "--store", place).stdout)["verdicts"]
    assert {name: row[name] for name in job} == job
    assert "job       Kubernetes ml/llama-worker" in run("show", "m02", "--store", place).stdout


def test_a_large_fleet(tmp_path: Path) -> None:
    """Status lists the machines of a large fleet that are not ok, worst first, and counts the rest; --all lists it."""
    store, now = Embedded(tmp_path / "s.db"), time.time_ns()
    names = [f"m{n:03}" for n in range(97)]
    store.write([host(name, now - (190 if name == "m003" else 20) * SECOND, 0.3) for name in names])
    store.write([verdict("m090", now - 70 * SECOND, "crit"), verdict("m005", now - 80 * SECOND, "warn")])
    store.close()
    words = "status", "--stale-after", "110s", "--store", tmp_path / "s.db"
    lines = run(*words).stdout.splitlines()
    assert [line.split()[:2] for line in lines[1:4]] == [["m090", "crit"], ["m005", "warn"], ["m003", "unknown"]]
    assert lines[4] == "not listed: 94 ok; --all lists every machine"
    assert lines[5].startswith("crit: m090 differs (for ")
    assert lines[-1].endswith("silent: m003")
    assert [line.split()[0] for line in run(*words, "--all").stdout.splitlines()[1:98]] == names
    assert len(json.loads(run(*words, "--json").stdout)["machines"]) == 97


def test_a_fleet_gone_silent(tmp_path: Path) -> None:
    """Status of many silent machines and many verdicts fits on one screen and counts all of them."""
    store, now = Embedded(tmp_path / "s.db"), time.time_ns()
    names = [f"m{n:03}" for n in range(83)]
    store.write([host(name, now - (5 if name == "m082" else 90) * SECOND, 0.3) for name in names])
    store.write([verdict(name, now - 60 * SECOND, "warn") for name in names[:44]])
    store.close()
    lines = run("status", "--store", tmp_path / "s.db").stdout.splitlines()
    assert lines[41] == "not listed: 4 warn, 38 unknown, 1 ok; --all lists every machine"
    assert lines[82] == "4 more open verdicts; --all has them"
    assert lines[83].endswith("silent: m000, m001, m002, m003, m004, m005, m006, m007 … (82 in all)")
    assert len(lines) == 84


@given(
    st.lists(st.text("abc ", min_size=1).map(lambda head: " ".join(head.split()) or "a"), min_size=3, max_size=9),
    st.integers(1, 90),
    st.integers(0, 19),
)
def test_a_narrow_terminal(heads: list[str], width: int, cell: int) -> None:
    """Status shows whole columns in order: three at least, and as many more as fit by their ranks."""
    columns = [[f"{at} {head}", "x" * cell] for at, head in enumerate(heads)]
    ranks = [-1, -1, -1, *range(len(heads) - 3, 0, -1)]
    shown = fitting(columns, ranks, width)
    wide = [max(len(line) for text in column for line in text.split("\n")) for column in shown]
    there = [int(column[0][0]) for column in shown]
    assert there == sorted(there)
    assert there[:3] == [0, 1, 2]
    assert len(shown) == 3 or sum(wide) + 2 * len(wide) - 2 <= width
    if sum(max(len(column[0]), cell) for column in columns) + 2 * len(heads) - 2 <= width:
        assert shown == columns


def test_names_are_whole_on_a_narrow_terminal(tmp_path: Path) -> None:
    """A long name, its level and the time are not cut where a terminal is narrow; readings that fit stand beside."""
    store, name = Embedded(tmp_path / "s.db"), "rack-07-slot-283"
    store.write([host(name, n * SECOND, n / 100, n) for n in (60, 80)])
    found = read_fleet_status(store, 82 * SECOND, 30 * SECOND)
    store.close()
    screen = Console(width=40, file=StringIO())
    drawn, missing = table(found, screen.width)
    screen.print(drawn)
    lines = screen.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert lines[-1].split() == [name, "ok", "2", "s", "ago", "70", "301"]
    assert max(map(len, lines)) <= 40
    assert missing == ["GPU busy %"]


def test_columns_that_decide_stay(tmp_path: Path) -> None:
    """Status on 80 columns shows a straggler's readings and lists the columns that it left out."""
    store, now = Embedded(tmp_path / "s.db"), time.time_ns()
    nccl = {"gpu": "0", "slot": "0", "iteration_seconds": 2.25, "active_ratio": 0.5, "send_pending_ratio": 0.25}
    values = {"cpu_utilization_ratio": 0.3, "memory_utilization_ratio": 0.4}
    gpu = {"gpu": "0", "power_watts": 612.0, "duty_cycle_ratio": 0.8, "sm_clock_hertz": 1.9e9}
    for back in (9, 5):
        more = {"host_blocked_seconds_total": 3.0 - back * 0.1, "operations_total": 900 - 7 * back}
        rows = (Sample("host", values), Sample("gpu", gpu), Sample("nccl", {**nccl, **more}))
        store.write([Batch("m01", now - back * SECOND, rows)])
    store.close()
    lines = run("status", "--store", tmp_path / "s.db", COLUMNS="80", FORCE_COLOR="1", NO_COLOR="1").stdout
    said = re.sub(r"\x1b\[[0-9;]*m", "", lines)
    heads = said[: said.index("m01")].split()
    assert {"iteration", "waiting", "active", "sending"} <= set(heads)
    assert "no room for GPU busy %, NCCL ops/s: widen" in said
    assert max(len(line) for line in said.splitlines()) <= 80


def test_readings(tmp_path: Path) -> None:
    """Readings are means of the last half minute over devices, and nothing that was not read is there."""
    store = Embedded(tmp_path / "s.db")
    store.write([host("m1", n * SECOND, n / 100) for n in (10, 60, 80)])
    found = read_fleet_status(store, 85 * SECOND, 30 * SECOND).machines["m1"]
    store.close()
    assert found.age_s == 5.0
    assert found.readings == pytest.approx({"cpu_ratio": 0.7, "gpu_watts": 300.7, "gpu_busy_ratio": 0.35})


def test_who_has_no_peers(place: Path) -> None:
    """Text and JSON name the machines without peers, as of the detector's last event."""
    store, now = Embedded(place), time.time_ns()
    reason = "fewer than 4 of its kind by host"
    for machine, code, back in (("m01", "no_peers", 50), ("m02", "no_peers", 40), ("m01", "peers", 30)):
        values = {"source": "detector", "code": code, "severity": "info", "message": reason}
        store.write([Batch(machine, now - back * SECOND, (Sample("event", values),))])
    store.close()
    assert f"no peers: m02: {reason}; only hard evidence applies" in run("status", "--store", place).stdout
    found = json.loads(run("status", "--json", "--store", place).stdout)
    assert found["without_peers"] == [{"machine": "m02", "reason": reason}]


def test_silence(tmp_path: Path) -> None:
    """One silent machine among others is a warning; if all are silent nothing is known."""
    store = Embedded(tmp_path / "s.db")
    store.write([host("m1", 20 * SECOND, 0.5), host("m2", 70 * SECOND, 0.25)])
    some, none = (read_fleet_status(store, at * SECOND, 30 * SECOND) for at in (75, 170))
    store.close()
    assert (some.level, some.machines["m1"].level, some.machines["m2"].level) == ("warn", "unknown", "ok")
    assert (none.level, none.newest) == ("unknown", 70 * SECOND)


def test_nothing_to_read(tmp_path: Path) -> None:
    """An empty store, an absent one and a wrong file give exit code 3 and say what to do."""
    Embedded(tmp_path / "empty.db").close()
    done = run("status", "--store", tmp_path / "empty.db")
    assert (done.returncode, "holds no reading; start the agent" in done.stdout) == (3, True)
    assert "is the agent running" in one_line(run("status", "--store", tmp_path / "absent.db"), 3)
    (tmp_path / "text.db").write_text("no database\n" * 100)
    assert "is not an SQLite file" in one_line(run("status", "--store", tmp_path / "text.db"), 3)
    assert "is not a duration" in one_line(run("status", "--store", tmp_path / "empty.db", "--stale-after", "soon"), 3)


def test_orders_are_no_readings(tmp_path: Path) -> None:
    """An order a moment ago makes no store fresh; a silent fleet stays listed, each machine with its age."""
    path, now = tmp_path / "s.db", time.time_ns()
    store = Embedded(path)
    store.write([host(name, now - 4000 * SECOND, 0.3) for name in ("m01", "m02")])
    order = Sample("event", {"source": "operator", "code": "ack", "severity": "info"})
    store.write([Batch("m01", now - 2 * SECOND, (order,))])
    store.close()
    done = run("status", "--json", "--store", path)
    found = json.loads(done.stdout)
    assert (done.returncode, found["level"]) == (3, "unknown")
    assert [(one["machine"], one["silent"], round(one["age_seconds"] / 100)) for one in found["machines"]] == [
        ("m01", True, 40),
        ("m02", True, 40),
    ]
    assert "the newest reading is 67 m old; does the agent run?" in run("status", "--store", path).stdout


def test_a_critical_verdict_is_known_though_all_are_silent(tmp_path: Path) -> None:
    """An open critical verdict gives exit code 2 though no machine is read; the JSON lists all silent machines."""
    path, now = tmp_path / "s.db", time.time_ns()
    store = Embedded(path)
    store.write([host(name, now - 90 * SECOND, 0.3) for name in ("m01", "m02")])
    store.write([verdict("m01", now - 95 * SECOND, "crit")])
    store.close()
    done = run("status", "--json", "--store", path)
    assert done.returncode == 2
    assert [one["silent"] for one in json.loads(done.stdout)["machines"]] == [True, True]


def test_as_it_was(place: Path) -> None:
    """A store of long ago is shown as of then, by a time or by how long ago that is."""
    assert run("status", "--store", place, "--at", "2026-05-01T12:00").returncode == 3
    assert run("status", "--store", place, "--at", "0.1s").returncode == 0
    assert "is not a time" in one_line(run("status", "--store", place, "--at", "noon"), 3)


def test_a_row_of_another_schema(place: Path) -> None:
    """A verdict without the columns of today is shown as far as it goes."""
    store = Embedded(place)
    store.write([Batch("m02", time.time_ns(), (Sample("verdict", {"task": "t1", "level": "warn"}),))])
    store.close()
    done = run("status", "--store", place)
    assert (done.returncode, done.stderr) == (1, "")
    assert re.search(r"^warn: m02 \(for \d s\)$", done.stdout, re.MULTILINE)


@pytest.mark.parametrize("words", [["status", "--store", "PLACE"], ["--help"], ["report", "verdict", "--help"], []])
def test_a_reader_that_hangs_up(place: Path, words: list[str]) -> None:
    """A pipe that is closed early is no warning, of help neither: the exit code is that of SIGPIPE, nothing is said."""
    command = [sys.executable, "-m", "cli.main", *(str(place) if word == "PLACE" else word for word in words)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        said = process.stderr.read()
    assert (process.returncode, said) == (141, "")
