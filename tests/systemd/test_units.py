"""The units and the example configuration that are installed."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cli.config import ConfigError, Settings, read_settings

FOLDER = Path(__file__).parents[2] / "systemd"
EXAMPLE = FOLDER / "peerwatch.toml"
UNITS = sorted(FOLDER.glob("*.service"))


def spoken_out(text: str) -> str:
    """The example with every key that stands behind # said aloud."""
    return re.sub(r"^#(?=\w+ = )", "", text, flags=re.MULTILINE)


def test_the_example_changes_nothing(tmp_path: Path) -> None:
    """As it is installed, and with every key said aloud, the example is the defaults."""
    assert read_settings(EXAMPLE) == Settings()
    aloud = tmp_path / "peerwatch.toml"
    aloud.write_text(spoken_out(EXAMPLE.read_text()))
    assert read_settings(aloud) == Settings()


def test_state_is_for_the_group() -> None:
    """All units share one folder, and none opens it to everybody: who can open a file there can lock it."""
    for unit in UNITS:
        lines = unit.read_text().splitlines()
        assert {"StateDirectory=peerwatch", "StateDirectoryMode=0750", "UMask=0027"} <= set(lines), unit


def names(table: dict[str, Any]) -> dict[str, Any]:
    """The keys of a table and of the tables in it."""
    return {key: names(value) if isinstance(value, dict) else None for key, value in table.items()}


def test_the_example_names_every_key() -> None:
    """No key is missing from the example, and each has a sentence above it."""
    said = msgspec.toml.decode(spoken_out(EXAMPLE.read_text()))
    wanted = msgspec.to_builtins(Settings())
    assert names(said) == names(wanted)
    lines = EXAMPLE.read_text().splitlines()
    for before, line in itertools.pairwise(lines):
        assert not re.match(r"#\w+ = ", line) or before.startswith("#"), line


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("stoer = 'x'", "unknown key: stoer"),
        ("[agent]\nperiod = 5", r"unknown key: period - at \$\.agent"),
        ("[agent]\nperiod_seconds = 'often'", r"Expected float, got str - at \$\.agent\.period_seconds"),
        ("[agent]\nperiod_seconds = 0", r">= 0.05 - at \$\.agent\.period_seconds"),
        ("[agent]\nsources = ['hots']", "agent.sources names 'hots'"),
        ("[detector]\nsigma = 3", r"unknown key: sigma - at \$\.detector"),
        ("[alerts]\nsinks = ['pager']", "alerts.sinks names 'pager': known are log, influxdb, webhook, command"),
        ("[alerts.webhook]\nulr = 'x'", r"unknown key: ulr - at \$\.alerts\.webhook"),
        ("[alerts.webhook]\ntemplate = 'teams'", "alerts.webhook.template is 'teams'"),
        ("[alerts.command]\nrun = 'drain m1'", r"Expected array, got str - at \$\.alerts\.command\.run"),
        (
            "[alerts.influxdb]\nheartbeat_seconds = 0",
            r">= 1.0 - at \$\.alerts\.influxdb\.heartbeat_seconds",
        ),
        ("[agent", "peerwatch.toml: "),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, said: str) -> None:
    """A key that is unknown or a value that cannot be meant is one line with file and key."""
    file = tmp_path / "peerwatch.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=said) as caught:
        read_settings(file)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_such_file(tmp_path: Path) -> None:
    """A configuration that was named must be there."""
    with pytest.raises(ConfigError, match="No such file"):
        read_settings(tmp_path / "absent.toml")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_units_are_sound(tmp_path: Path) -> None:
    """systemd finds no fault with the units."""
    copies = []
    for unit in UNITS:
        copies.append(tmp_path / unit.name)
        copies[-1].write_text(unit.read_text().replace("/opt/peerwatch/bin/python", sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *copies], capture_output=True, text=True, check=False
    )
    assert (len(copies), done.returncode, done.stderr) == (3, 0, "")


MOST_EXPOSED = {"peerwatch-agent": 2.5, "peerwatch-detector": 1.2, "peerwatch-writer": 1.2}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_units_are_closed(unit: Path) -> None:
    """The exposure that systemd works out, from 0 (closed) to 10, is at most what the unit needs."""
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", unit]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    (exposure,) = re.findall(r"Overall exposure level for \S+: ([0-9.]+)", done.stdout)
    assert float(exposure) <= MOST_EXPOSED[unit.stem], done.stdout


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_units_are_bounded_and_watched(unit: Path) -> None:
    """Each has a watchdog, bounds of memory, processor and tasks, and takes its secrets as credentials."""
    lines = unit.read_text().splitlines()
    settings = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    assert settings["Type"] == "notify"
    assert {"WatchdogSec", "MemoryMax", "CPUQuota", "TasksMax", "TimeoutStartSec", "TimeoutStopSec"} <= settings.keys()
    credentials = [line.partition("=")[2].split(":") for line in lines if line.startswith("LoadCredential=")]
    assert credentials
    assert all(place == f"peerwatch-{name}" for name, place in credentials)  # in a credstore: it may be missing


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_units_start_real_commands(unit: Path) -> None:
    """What a unit starts is a command with such options, run so that no stray file can be imported."""
    command = re.search(r"^ExecStart=/opt/peerwatch/bin/python (.*)$", unit.read_text(), re.MULTILINE)
    assert command is not None
    words = command[1].replace("/etc/peerwatch/peerwatch.toml", str(EXAMPLE)).split()
    assert words[0] == "-I"
    done = subprocess.run([sys.executable, *words, "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--config" in done.stdout


MANY = """
#define _GNU_SOURCE
#include <sched.h>
#include <string.h>
#include <unistd.h>
long sysconf(int name) { return name == _SC_PAGESIZE ? 4096 : name == _SC_CLK_TCK ? 100 : 192; }
int sched_getaffinity(pid_t pid, size_t size, cpu_set_t *set) { memset(set, 255, size < 24 ? size : 24); return 0; }
"""
PROGRAMS = {
    "agent": "agent.sampling.loop",
    "detector": "detector.engine.pipeline",
    "writer": "store.transfer.stream_writer",
}


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_many_processors_leave_room_for_threads(tmp_path: Path, unit: Path) -> None:
    """On a machine of 192 processors no library takes the threads that a unit may have."""
    (tmp_path / "many.c").write_text(MANY)
    library = tmp_path / "many.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "many.c"], check=True)
    text = unit.read_text()
    variables = re.findall(r"([A-Z_]+)=(\S+)", " ".join(re.findall(r"^Environment=(.*)$", text, re.MULTILINE)))
    code = f"import os, {PROGRAMS[unit.stem.split('-')[1]]}, numpy; print(len(os.listdir('/proc/self/task')))"
    before = {"PATH": os.environ["PATH"], "LD_PRELOAD": str(library), "OPENBLAS_NUM_THREADS": "64"}
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, env=before | dict(variables), check=True
    )
    (most,) = re.findall(r"^TasksMax=(\d+)$", text, re.MULTILINE)
    assert int(done.stdout) <= int(most) // 16
