"""Doctor: what is on, off or blocked, why, and what mends it."""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agent.config import USUAL
from agent.nvml.library_path import find_library
from agent.sources.scheduler import TRACEPOINTS
from bpf.loader import BpfError, Kernel, load
from bpf.tracepoint import attach
from cli.main import app
from cli.queries.delivery_health import Finding
from detector.alerts.delivery_log import DeliveryLog, write_delivery_log
from store.open import open_store
from store.schema.sample import Batch, Sample


def run(*arguments: str) -> tuple[int, dict[str, dict[str, str]]]:
    """Exit code and findings by name."""
    result = CliRunner().invoke(app, ["doctor", "--json", *arguments])
    return result.exit_code, {finding["name"]: finding for finding in json.loads(result.stdout)}


@pytest.mark.bpf
def test_all_on(probes_allowed: None, tmp_path: Path) -> None:
    """Every source is on, or off where the machine has no such device; the exit code is 1 if a library is blocked."""
    code, found = run("--store", str(tmp_path / "none.db"))
    blocked = {name for name, finding in found.items() if finding["state"] == "blocked"}
    assert all(name.startswith("library ") for name in blocked), found  # of other programs on this machine
    assert code == int(bool(blocked))
    states = {name: found[f"source {name}"]["state"] for name in USUAL}
    assert states == dict.fromkeys(USUAL, "on") | {name: states[name] for name in ("gpu", "rdma")}
    assert all((states[name] == "on") == (not found[f"source {name}"]["why"]) for name in ("gpu", "rdma"))
    assert found["source ras"]["state"] == "off"
    assert {name: found[f"tracepoint {name}"]["state"] for name in TRACEPOINTS} == dict.fromkeys(TRACEPOINTS, "on")
    assert found[f"store {tmp_path / 'none.db'}"]["state"] == "off"


def test_sinks_of_alerts(tmp_path: Path) -> None:
    """A sink that cannot be opened, or has failed to send its last alert, is blocked, with reason and mend."""
    config, folder = tmp_path / "peerwatch.toml", tmp_path / "none.alerts"
    config.write_text('[agent]\nsources = ["host"]\n[alerts]\nsinks = ["log", "webhook", "command"]\n')
    code, found = run("--config", str(config), "--store", str(tmp_path / "none.db"))
    assert (code, found["sink webhook"]["state"]) == (0, "off")  # no detector runs here
    for name, log in (("log", DeliveryLog(delivered=7)), ("webhook", DeliveryLog(delivered=3))):
        write_delivery_log(folder / f"{name}.json", log.packed())
    code, found = run("--config", str(config), "--store", str(tmp_path / "none.db"))
    assert (code, found["sink log"]["state"], found["sink log"]["why"]) == (1, "on", "7 alerts delivered")
    for name, word in (("webhook", "alerts.webhook names no address"), ("command", "alerts.command names no program")):
        sink = found[f"sink {name}"]
        assert (sink["state"], sink["mend"]) == ("blocked", f"peerwatch alerts test {name}")
        assert word in sink["why"]
    write_delivery_log(folder / "log.json", DeliveryLog(delivered=9, error="no space left").packed())
    code, found = run("--config", str(config), "--store", str(tmp_path / "none.db"))
    assert found["sink log"]["why"] == "the last alert failed: no space left"


def test_sources_that_have_nothing_to_read_say_so(tmp_path: Path) -> None:
    """A machine without GPU driver or RDMA is well; its lines differ from those of a machine with GPUs and ports."""
    configuration = tmp_path / "peerwatch.toml"
    port = tmp_path / "one/sys/class/infiniband/mlx5_3/ports/1"
    port.mkdir(parents=True)
    (port / "state").write_text("4: ACTIVE\n")
    for root, words in ((tmp_path / "none", "there is no RDMA port"), (tmp_path / "one", "")):
        configuration.write_text(f'[agent]\nroot = "{root}"\nsources = ["gpu", "rdma"]\n')
        code, found = run("--config", str(configuration), "--store", str(tmp_path / "none.db"))
        assert code == 0
        assert found["source rdma"]["state"] == ("off" if words else "on")
        assert found["source rdma"]["why"].startswith(words)
        assert bool(found["source rdma"]["why"]) == bool(words)
        if not find_library(root, os.environ):
            assert (found["source gpu"]["state"], found["source gpu"]["why"]) == (
                "off",
                "there is no libnvidia-ml.so.1",
            )


PY_SPY = f"{sys.executable} -m pip install py-spy"


@pytest.mark.parametrize(
    ("path", "check"),
    [
        (None, ("stacks", "on", "Python stacks of ranks that hang; kernel stacks of other processes", "")),
        (
            "/nowhere/py-spy",
            (
                "stacks",
                "off",
                f"kernel stacks only: py-spy is not installed: {PY_SPY}",
                PY_SPY,
            ),
        ),
    ],
)
def test_stacks(path: str | None, check: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Doctor tries to take stacks; without py-spy it says what works without it, and names the mend."""
    if path:
        monkeypatch.setattr("agent.stacks.py_spy.spy_path", lambda: path)
    config = tmp_path / "peerwatch.toml"
    config.write_text('[agent]\nsources = ["host"]\n')
    code, found = run("--config", str(config), "--store", str(tmp_path / "none.db"))
    assert (code, tuple(found["stacks"].values())) == (0, check)


@pytest.mark.bpf
def test_a_tracepoint_that_is_blocked(probes_allowed: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A tracepoint that this kernel refuses is blocked with its reason, and its source goes on with the others."""

    def refuse(program: int) -> int:
        if program == loaded[0].programs["tp_btf__mark_victim"]:
            raise OSError(1, "the kernel refuses")
        return attach(program)

    def remember(*wanted: Any) -> Kernel:
        loaded.append(load(*wanted))
        return loaded[-1]

    loaded: list[Kernel] = []
    monkeypatch.setattr("agent.sampling.loop.load", remember)
    monkeypatch.setattr("agent.sources.scheduler.attach", refuse)
    code, found = run("--store", str(tmp_path / "none.db"))
    assert code == 1
    assert found["tracepoint mark_victim"]["state"] == "blocked"
    assert found["tracepoint mark_victim"]["why"] == "the kernel refuses"
    assert found["tracepoint sched_switch"]["state"] == found["source scheduler"]["state"] == "on"


@pytest.mark.parametrize(
    ("cause", "mend"),
    [
        ("the BPF compiler is missing: apt-get install python3-bpfcc", "apt-get install python3-bpfcc"),
        ("the bcc found at /x is another project of that name", "pip uninstall bcc && apt-get install python3-bpfcc"),
        (
            "the kernel does not let this process load BPF: run as root or …",
            "sudo systemctl start peerwatch-agent, or sudo peerwatch up",
        ),
    ],
)
def test_blocked_probes_say_why(cause: str, mend: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Sources that need probes are blocked with cause and mend, the others are on; the exit code is 1."""

    def refuse(*wanted: Any) -> Any:
        raise BpfError(cause)

    monkeypatch.setattr("agent.sampling.loop.load", refuse)
    code, found = run("--store", str(tmp_path / "none.db"))
    assert code == 1
    for name in ("probe", "nccl", "cuda", "scheduler"):
        assert found[f"source {name}"] == {"name": f"source {name}", "state": "blocked", "why": cause, "mend": mend}
    assert found["source host"]["state"] == "on"


def test_paths_are_not_markup(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Doctor prints foreign names as they are, without characters that a terminal would obey."""
    odd = Finding("library /x/[/bold]libnccl[red].so\x1b[2J", "blocked", "[/]", "")
    monkeypatch.setattr("cli.commands.fleet.doctor._surroundings", lambda: [odd])
    config = tmp_path / "peerwatch.toml"
    config.write_text('[agent]\nsources = ["host"]\n')
    where = ["--config", str(config), "--store", str(tmp_path / "none.db")]
    result = CliRunner(env={"COLUMNS": "300"}).invoke(app, ["doctor", *where])
    assert result.exit_code == 1
    assert "/x/[/bold]libnccl[red].so?[2J" in result.stdout
    assert "\x1b" not in result.stdout


def test_table_for_people(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Text is a table with the same findings; a source that is not configured is off."""
    config = tmp_path / "peerwatch.toml"
    config.write_text('[agent]\nsources = ["host"]\n')
    result = CliRunner(env={"COLUMNS": "300"}).invoke(
        app, ["doctor", "--config", str(config), "--store", str(tmp_path / "none.db")]
    )
    assert result.exit_code == 0
    assert "source host" in result.stdout
    assert "not in the configuration" in result.stdout


def test_a_running_agent_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Doctor shows what the agent of this machine reports, not its own findings nor another machine's."""
    place, config = tmp_path / "readings.db", tmp_path / "peerwatch.toml"
    config.write_text('[agent]\nmachine = "m17"\nsources = ["host"]\n')
    now = time.time_ns()
    blocked = {
        "library": "libnccl.so.2",
        "state": "blocked",
        "reason": "stripped, or static",
        "path": "/opt/libnccl.so.2",
    }
    left_out = {"library": "left out: communicators", "state": "blocked", "reason": "3744 in the last minute"}
    rows = (
        Sample("source", {"source": "host", "success": 0.0, "error": "no such pressure"}),
        Sample("source", {"source": "gpu", "success": 1.0, "unavailable": "there is no driver"}),
        Sample("source", {"source": "kernel", "lost_total": 4711}),
        Sample("probe", blocked),
        Sample("probe", left_out),
        Sample(
            "probe", {"library": "probes: cost", "state": "on", "reason": "a hit costs 1.9 µs", "core_ratio": 0.004}
        ),
        Sample("probe", {"library": "libcudart.so.12", "state": "on", "symbols": 5, "path": "/opt/libcudart.so.12"}),
    )
    with closing(open_store(str(place), create=True)) as store:
        store.write(
            [Batch("m17", now, rows), Batch("m23", now, (Sample("probe", {"library": "other", "state": "on"}),))]
        )
    monkeypatch.setattr("cli.commands.fleet.doctor._sources", lambda settings: pytest.fail("it looks for itself"))
    code, found = run("--config", str(config), "--store", str(place))
    assert code == 1
    assert found["agent"]["state"] == "on"
    assert (found["source host"]["state"], found["source host"]["why"]) == ("blocked", "no such pressure")
    assert (found["source gpu"]["state"], found["source gpu"]["why"]) == ("off", "there is no driver")
    assert found["source nccl"]["state"] == "off"
    assert "4711 probe hits" in found["kernel"]["why"]
    library = found["library /opt/libnccl.so.2"]
    assert (library["state"], library["why"]) == ("blocked", "0 probes; stripped, or static")
    assert library["mend"].startswith("use a libnccl")
    assert found["left out: communicators"]["why"] == "3744 in the last minute"
    assert found["library /opt/libcudart.so.12"]["why"] == "5 probes"
    assert (found["probes: cost"]["state"], found["probes: cost"]["why"]) == ("on", "a hit costs 1.9 µs")
    assert not any("other" in name for name in found)
    assert "NCCL transfers" not in found


@pytest.mark.parametrize("state", ["on", "blocked"])
def test_findings_4_5_what_no_library_lets_be_seen_is_named(state: str, tmp_path: Path) -> None:
    """Where libnccl carries probes, doctor names the transfers that no probe and no memory shows."""
    place, config = tmp_path / "readings.db", tmp_path / "peerwatch.toml"
    config.write_text('[agent]\nmachine = "m19"\nsources = ["host"]\n')
    rows = (
        Sample("source", {"source": "host", "success": 1.0}),
        Sample("probe", {"library": "libnccl.so.2", "state": state, "symbols": 23, "path": "/opt/libnccl.so.2"}),
    )
    with closing(open_store(str(place), create=True)) as store:
        store.write([Batch("m19", time.time_ns(), rows)])
    _, found = run("--config", str(config), "--store", str(place))
    said = found.get("NCCL transfers", {"why": ""})["why"]
    assert [word in said for word in ("NVLink", "PXN", "NVLS", "copy engines", "device-initiated")] == [
        state == "on"
    ] * 5


def test_an_agent_that_is_silent_is_not_asked(tmp_path: Path) -> None:
    """Doctor says that no agent runs where the machine's last reading is old, and looks for itself."""
    place, config = tmp_path / "readings.db", tmp_path / "peerwatch.toml"
    config.write_text('[agent]\nmachine = "m17"\nsources = ["host"]\n')
    old = Sample("source", {"source": "host", "success": 0.0, "error": "long ago"})
    with closing(open_store(str(place), create=True)) as store:
        store.write([Batch("m17", time.time_ns() - 45_000_000_000, (old,))])
    code, found = run("--config", str(config), "--store", str(place))
    assert (code, found["agent"]["state"], found["source host"]["state"]) == (0, "off", "on")
    assert found["agent"]["why"] == (
        "no reading of m17 within 30 s: no agent runs here; this command checked the rest itself"
    )
