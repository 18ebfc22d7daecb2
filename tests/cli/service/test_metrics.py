"""`peerwatch detector` and `peerwatch agent` with /metrics, as processes."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from store.sqlite.embedded import Embedded
from tests.cli.conftest import ROOT, SECOND, host
from tests.servers import free_port


@contextmanager
def running(folder: Path, text: str, command: str) -> Iterator[subprocess.Popen[str]]:
    """A program with this configuration and a store of four machines."""
    config, store = folder / "peerwatch.toml", Embedded(folder / "s.db")
    config.write_text(text)
    now = time.time_ns()
    for back in range(40, 0, -1):
        store.write([host(f"m{number}", now - back * SECOND, 0.3, 7 * back) for number in range(4)])
    store.close()
    words = [sys.executable, "-m", "cli.main", command, "--config", str(config), "--store", str(folder / "s.db")]
    with subprocess.Popen(words, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        yield process
        process.terminate()


def text_at(port: int, words: str) -> str:
    """The metrics there, once they hold these words."""
    limit = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                text: str = answer.read().decode()
        except OSError:
            text = ""
        if words in text:
            return text
        assert time.monotonic() < limit, text
        time.sleep(0.2)


def test_the_detector_answers(tmp_path: Path) -> None:
    """The detector says how many machines it judges, and that it steps."""
    port = free_port()
    with running(tmp_path, f'[metrics]\ndetector_listen = "127.0.0.1:{port}"\n', "detector"):
        text = text_at(port, "peerwatch_machines 4")
    assert "peerwatch_detector_last_step_timestamp_seconds" in text
    assert "peerwatch_store_usable 1" in text
    assert 'peerwatch_detector_info{version="' in text


@pytest.mark.parametrize(("command", "key"), [("detector", "detector_listen"), ("agent", "listen")])
def test_an_address_that_is_taken_stops_no_program(tmp_path: Path, command: str, key: str) -> None:
    """A program that cannot take its address says so in one line and goes on."""
    text = f'[agent]\nmachine = "m0"\nsources = ["host"]\n[metrics]\n{key} = "192.0.2.7:9464"\n'  # not of this host
    with running(tmp_path, text, command) as process:
        assert process.stderr is not None
        line = next(line for line in process.stderr if "metrics." in line)
        assert f"metrics.{key}: cannot listen on 192.0.2.7:9464" in line
        time.sleep(1.0)
        assert process.poll() is None
