"""What a service says to systemd, heard on a socket that stands for systemd's."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.config import AgentConfig
from agent.sampling import loop
from agent.system.service_manager import ServiceManager


class Systemd:
    """The other end of NOTIFY_SOCKET."""

    def __init__(self, folder: Path) -> None:
        self.address = str(folder / "notify")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.address)

    def hear(self, seconds: float) -> list[str]:
        """The lines of the next datagram; none if none comes in time."""
        self._socket.settimeout(seconds)
        try:
            return self._socket.recv(4096).decode().split("\n")
        except TimeoutError:
            return []

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Systemd]:
    """A service manager that this process is made to believe in."""
    manager = Systemd(tmp_path)
    monkeypatch.setenv("NOTIFY_SOCKET", manager.address)
    yield manager
    manager.close()


def test_ready_once_and_a_status_when_it_changes(systemd: Systemd) -> None:
    """Each turn feeds the watchdog; readiness is said with the first, a status with each new one."""
    manager = ServiceManager()
    assert "NOTIFY_SOCKET" not in os.environ
    manager.alive("3 machines")
    manager.alive("3 machines")
    manager.alive("5 machines\nREADY=0")
    manager.close()
    assert systemd.hear(1) == ["WATCHDOG=1", "READY=1", "STATUS=3 machines"]
    assert systemd.hear(1) == ["WATCHDOG=1"]
    assert systemd.hear(1) == ["WATCHDOG=1", "STATUS=5 machines READY=0"]
    assert systemd.hear(1) == ["STOPPING=1"]


def test_without_a_service_manager(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that a person starts says nothing and goes on."""
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    manager = ServiceManager()
    manager.alive("alone")
    manager.close()


def test_a_service_manager_that_is_away(systemd: Systemd, caplog: pytest.LogCaptureFixture) -> None:
    """A loop goes on where nothing listens, says so once, and is ready when something does again."""
    manager = ServiceManager()
    os.rename(systemd.address, f"{systemd.address}.away")
    manager.alive("7 machines")
    manager.alive("7 machines")
    os.rename(f"{systemd.address}.away", systemd.address)
    manager.alive("7 machines")
    manager.close()
    assert len(caplog.records) == 1
    assert systemd.hear(1) == ["WATCHDOG=1", "READY=1", "STATUS=7 machines"]


class Shut:
    """A store that hangs while `free` is not set."""

    def __init__(self) -> None:
        self.free = threading.Event()
        self.free.set()

    def write(self, batches: object) -> None:
        """Wait until it may go on."""
        self.free.wait()


def test_a_loop_that_hangs_feeds_no_watchdog(systemd: Systemd) -> None:
    """Ready after the first reading; no word while the loop hangs in the store; words again when it goes on."""
    manager, sink, stop = ServiceManager(), Shut(), threading.Event()
    config = AgentConfig(machine="m07", period_seconds=0.05, sources=("host",))
    running = threading.Thread(target=loop.run, args=(config, sink, stop, None, None, manager.alive))
    running.start()
    try:
        assert "READY=1" in systemd.hear(10)
        assert systemd.hear(2)[0] == "WATCHDOG=1"
        sink.free.clear()
        while systemd.hear(0.5):
            pass
        assert systemd.hear(0.5) == []
        sink.free.set()
        assert systemd.hear(2)[0] == "WATCHDOG=1"
    finally:
        sink.free.set()
        stop.set()
        running.join()
        manager.close()


def test_the_watchdogs_signal_says_where_it_hangs(tmp_path: Path) -> None:
    """SIGABRT, which systemd sends to a service that hangs, leaves the stack of every thread in the journal."""
    code = (
        "import time\nfrom agent.system.service_manager import ServiceManager\n"
        "def stuck():\n    time.sleep(60)\nServiceManager().alive('up')\nstuck()\n"
    )
    systemd = Systemd(tmp_path)
    child = subprocess.Popen(
        [sys.executable, "-c", code],
        stderr=subprocess.PIPE,
        env=os.environ | {"NOTIFY_SOCKET": systemd.address},
        text=True,
    )
    assert systemd.hear(20)
    time.sleep(0.2)
    child.send_signal(signal.SIGABRT)
    said = child.communicate(timeout=20)[1]
    systemd.close()
    assert "in stuck" in said
    assert child.returncode == -signal.SIGABRT
