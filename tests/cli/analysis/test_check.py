"""`peerwatch check`: tools on PATH, their output, their limits, and what is written to the store."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from store.schema.sample import Batch, Sample
from store.sqlite.embedded import Embedded
from tests.cli.conftest import SECOND, host, one_line, run

HOST = socket.gethostname()
DCGM_FAILS = {
    "DCGM Diagnostic": {
        "test_categories": [
            {"category": "Deployment", "tests": [{"name": "software", "results": [{"status": "Pass"}]}]},
            {
                "category": "Hardware",
                "tests": [
                    {
                        "name": "memory",
                        "results": [
                            {"gpu_id": "0", "status": "Pass"},
                            {"gpu_id": "3", "status": "Fail", "warnings": [{"warning": "row  remap\npending"}]},
                        ],
                    }
                ],
            },
        ]
    }
}
NCCL = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 361.25\n"
IB = " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n"
IB += " 65536      112233           0.00               391.07             0.745\n"


@pytest.fixture
def tools(tmp_path: Path) -> Callable[..., dict[str, str]]:
    """Puts programs on PATH that print a text and exit with a code; returns the environment."""
    folder = tmp_path / "bin"
    folder.mkdir()

    def put(name: str, text: str, code: int = 0, before: str = "") -> dict[str, str]:
        (folder / f"{name}.txt").write_text(text)
        (folder / name).write_text(f"#!/bin/sh\n{before}\ncat '{folder}/{name}.txt'\nexit {code}\n")
        (folder / name).chmod(0o755)
        return {"PATH": f"{folder}:{os.environ['PATH']}"}

    return put


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A store with this host and two others, of which m7 trains."""
    path = tmp_path / "s.db"
    store = Embedded(path)
    now = time.time_ns()
    store.write([host(name, now, 0.5) for name in (HOST, "m7", "m8")])
    calls = Sample("nccl", {"gpu": "0", "slot": "0", "operations_total": 77})
    store.write([Batch("m7", now - 5 * SECOND, (calls,))])
    store.close()
    return path


def rows(path: Path, table: str) -> list[dict[str, Any]]:
    """The rows of a table."""
    store = Embedded(path, False)
    found: list[dict[str, Any]] = store.read(table).to_pylist()
    store.close()
    return found


def test_a_failed_diagnostic_is_evidence(place: Path, tools: Any) -> None:
    """A GPU that DCGM fails is exit code 2, a row with the device, and a critical event for the detector."""
    env = tools("dcgmi", "banner\n" + json.dumps(DCGM_FAILS), 226)
    done = run("check", HOST, "--only", "dcgm", "--store", place, **env)
    assert (done.returncode, done.stderr) == (2, "")
    assert done.stdout == f"{HOST} dcgm  FAILED  gpu:3 1 results failed; memory: row remap pending\n"
    (row,) = rows(place, "check")
    assert (row["machine"], row["check"], row["outcome"], row["device"]) == (HOST, "dcgm", "failed", "gpu:3")
    (event,) = rows(place, "event")
    assert (event["source"], event["code"], event["severity"]) == ("check", "check:dcgm", "crit")


def test_what_passes_has_its_figure(place: Path, tools: Any) -> None:
    """Bandwidths are read from the tools' own output, and the exit code is 0."""
    tools("dcgmi", json.dumps({"DCGM Diagnostic": {"tests": [{"name": "pcie", "results": [{"status": "Pass"}]}]}}))
    tools("ib_write_bw", IB)
    env = tools("all_reduce_perf", NCCL)
    words = ("--only", "dcgm", "--only", "nccl", "--only", "ib")
    done = run("check", "localhost", *words, "--json", "--store", place, **env)
    assert done.returncode == 0, done.stdout + done.stderr
    checks = {one["check"]: one for one in json.loads(done.stdout)["results"]}
    assert {one["machine"] for one in checks.values()} == {HOST}
    assert {name: one["outcome"] for name, one in checks.items()} == dict.fromkeys(("dcgm", "nccl", "ib"), "passed")
    assert (checks["nccl"]["value"], checks["nccl"]["measure"]) == (361.25, "GB/s")
    assert (checks["ib"]["value"], checks["ib"]["measure"]) == (391.07, "Gbit/s")
    assert {row["check"]: row["value"] for row in rows(place, "check")}["ib"] == 391.07
    assert rows(place, "event") == []


@pytest.mark.parametrize(
    ("text", "code", "said", "events"),
    [
        ("# Out of bounds values : 4 FAILED\n# Avg bus bandwidth : 300\n", 0, "FAILED  4 wrong values", 1),
        (
            "x\nTest NCCL failure common.cu:958 'unhandled system error'\n",
            3,
            "ERROR   exit code 3: Test NCCL failure",
            0,
        ),
        ("", 0, "no output", 0),
    ],
)
def test_wrong_values_and_errors(place: Path, tools: Any, text: str, code: int, said: str, events: int) -> None:
    """Wrong values are evidence against the machine; a tool without a result is no pass, and no evidence."""
    env = tools("all_reduce_perf", text, code)
    done = run("check", HOST, "--only", "nccl", "--store", place, **env)
    assert done.returncode == 2
    assert said in done.stdout
    assert len(rows(place, "event")) == events


def test_a_tool_that_hangs_is_cut_off(place: Path, tools: Any) -> None:
    """A check ends at its time limit with all that it started, and does not pass."""
    env = tools("dcgmi", "{}", before="sleep 321 & sleep 322")
    begin = time.monotonic()
    done = run("check", HOST, "--only", "dcgm", "--limit", "1", "--store", place, **env)
    assert done.returncode == 2
    assert "CUT OFF" in done.stdout
    assert time.monotonic() - begin < 60
    commands = [(path / "cmdline").read_bytes() for path in Path("/proc").glob("[0-9]*") if (path / "cmdline").exists()]
    assert not any(b"sleep\x00321" in command for command in commands)


def test_without_any_tool(place: Path, tmp_path: Path) -> None:
    """A host without the tools says of each how to get it, and ends with 1."""
    done = run("check", HOST, "--only", "ib", "--only", "dcgm", "--store", place, PATH=str(tmp_path))
    assert done.returncode == 1
    assert "ib    missing not installed; get it: apt-get install perftest" in done.stdout
    assert {row["outcome"] for row in rows(place, "check")} == {"missing"}


def test_a_machine_that_trains_is_left_alone(place: Path, tools: Any) -> None:
    """A machine with NCCL calls of the last minutes is refused, and with --force it is asked by ssh."""
    answer = [{"machine": "x", "check": "ib", "outcome": "passed", "message": "average 77 Gbit/s", "value": 77.0}]
    env = tools("ssh", "banner\n" + json.dumps({"results": answer}) + "\n")
    error = one_line(run("check", "m7", "--store", place, **env), 1)
    assert "m7 trains" in error
    assert "--force" in error
    done = run("check", "m7", "--only", "ib", "--force", "--store", place, **env)
    assert (done.returncode, done.stdout) == (0, "m7 ib    passed  average 77 Gbit/s\n")
    assert [(row["machine"], row["value"]) for row in rows(place, "check")] == [("m7", 77.0)]


def test_a_machine_that_does_not_answer(place: Path, tools: Any) -> None:
    """One line has the message of ssh; the command refuses a name that ssh would take for an option."""
    env = tools("ssh", "m8: No route to host\n", 255)
    assert "m8 was not checked: m8: No route to host" in one_line(run("check", "m8", "--store", place, **env), 1)
    assert "is no name of a machine" in one_line(run("check", "--store", place, "--", "-oProxyCommand=x"), 1)
    assert "there is no check 'nmap'" in one_line(run("check", "m8", "--only", "nmap", "--store", place), 1)


def test_pairs_name_the_machine_that_both_pairs_share(tools: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine with two slow pairs in a ring of four fails, its neighbours pass; no result is no pass."""
    from analysis.checks.machine import run_pairs

    tools("all_gather_perf", NCCL)
    slow = 'case "$*" in *m2*) echo "# Avg bus bandwidth : 40.5";; *) echo "# Avg bus bandwidth : 48.75";; esac'
    monkeypatch.setenv("PATH", tools("mpirun", "", before=slow)["PATH"])
    found = {one.machine: one for one in run_pairs(["m1", "m2", "m3", "m4"])}
    assert {name: one.outcome for name, one in found.items()} == {
        "m1": "passed",
        "m2": "failed",
        "m3": "passed",
        "m4": "passed",
    }
    assert found["m2"].value == 40.5
    monkeypatch.setenv("PATH", tools("mpirun", "ssh: no route to host\n", 255)["PATH"])
    assert {one.outcome for one in run_pairs(["m1", "m2", "m3"])} == {"error"}
