"""What others chose, such as names of machines and tasks, never commands a terminal, in any command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.terminal import safe
from store.schema.sample import Batch, Sample
from store.sqlite.embedded import Embedded
from tests.cli.conftest import ROOT, SECOND, host, run

RUDE = "m\x1b]0;owned\x07\x1b[31m\x9b32m[/red]x[bold]\u202e"
COMMANDS = (
    ("status",),
    ("status", "--json"),
    ("show",),
    ("show", "--json"),
    ("show", "1"),
    ("show", "1", "--json"),
    ("tasks",),
    ("tasks", "--json"),
    ("maintenance",),
    ("report", "startup"),
    ("report", "startup", "--json"),
    ("ack", RUDE),
    ("ack", f"{RUDE[:-2]}*"),
)


@pytest.fixture
def rude(tmp_path: Path) -> Path:
    """A store in which a machine, its task, a verdict, an event, an order and a communicator are named so."""
    path, now = tmp_path / "s.db", time.time_ns()
    store = Embedded(path)
    nccl: dict[str, Any] = {"gpu": "0", "slot": "0", "comm": RUDE, "rank": 0, "ranks": 2, "pid": 7, "operation": RUDE}
    start = {"gpu": "0", "pid": 7, "start_time_seconds": now / 1e9 - 90, "nccl_loaded_seconds": 3.5}
    order = {"source": "operator", "code": "maintenance", "severity": "info", "message": RUDE}
    said = {"task": RUDE, "kind": "peer", "metric": "gpu.power_watts", "score": 4.5, "since": now - 40 * SECOND}
    for back in (9, 6, 3):
        store.write([host(RUDE, now - back * SECOND, 0.4), host("m02", now - back * SECOND, 0.5)])
        rows = (Sample("nccl", {**nccl, "operations_total": 900 - back}), Sample("startup", start))
        store.write([Batch(RUDE, now - back * SECOND, rows)])
    store.write([Batch(RUDE, now - 2 * SECOND, (Sample("event", order),))])
    word = Sample("verdict", {**said, "device": RUDE, "level": "crit", "message": f"{RUDE} differs"})
    store.write([Batch(RUDE, now - 20 * SECOND, (word,))])
    store.close()
    return path


def strings(value: Any) -> Iterator[str]:
    """All texts in an object of JSON."""
    if isinstance(value, str):
        yield value
    for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from strings(one)


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words).replace(RUDE, "RUDE")[:20])
def test_no_command_lets_escapes_through(rude: Path, words: tuple[str, ...]) -> None:
    """Commands write no escape, control character or turn of direction, and show markup as it is."""
    done = run(*words, "--store", rude)
    assert "Traceback" not in done.stderr
    for stream in (done.stdout, done.stderr):
        assert not any(sign in stream for sign in "\x1b\x07\x9b\u202e"), stream
    if "--json" in words:  # nothing is lost there
        assert any(RUDE in text for text in strings(json.loads(done.stdout)))
    else:
        assert "[/red]x[bold]" in done.stdout + done.stderr


def test_a_live_terminal_keeps_its_own_colours(rude: Path) -> None:
    """A terminal gets the colours of Peerwatch and none from foreign names."""
    said = run("status", "--store", rude, FORCE_COLOR="1", TERM="xterm").stdout
    assert "\x1b[1;31m" in said
    assert "\x1b]0;" not in said
    assert "\x9b" not in said


def test_lines_stay_lines() -> None:
    """Text without such characters is the same text."""
    assert safe("two\tlines\nof plain text: é, µ, ▁▂") == "two\tlines\nof plain text: é, µ, ▁▂"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_terminals_without_our_signs(rude: Path, encoding: str) -> None:
    """A terminal without blocks and dashes gets other signs; no output ends half-way."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200", "PYTHONIOENCODING": encoding}
    for words in (("show", "1"), ("status",), ("tasks",), ("status", "--json")):
        command = [sys.executable, "-m", "cli.main", *words, "--store", str(rude)]
        done = subprocess.run(command, capture_output=True, encoding=encoding, env=env, check=False)
        assert "codec" not in done.stderr
        assert done.returncode in (0, 2)
        assert done.stdout
