"""Children keep no right that they do not need, which is read from the kernel while they are at work."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agent.binaries.symbol_lookup import SymbolLookup
from agent.nvml.client import Child
from agent.process.procfs import Processes
from agent.system.child_process import ChildTask
from agent.system.rights import DAC_READ_SEARCH, SYS_PTRACE
from emulator.hardware.nvml_state import Gpus
from emulator.libraries.build import Libraries as Built

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root has capabilities to give up")

ALL = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")


def rights(pid: int | str) -> dict[str, int]:
    """The sets of capabilities of a process, and whether it can gain any."""
    pairs = (line.split(":\t") for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {name: int(value, 16) for name, value in pairs if name in (*ALL, "NoNewPrivs")}


NONE = dict.fromkeys(ALL, 0) | {"NoNewPrivs": 1}


def test_reader_of_libraries(tmp_path: Path) -> None:
    """While it reads a file it has no rights; to open it, it had them."""
    big = tmp_path / "libnccl.so.2"
    subprocess.run(["cc", "-g", "-shared", "-o", str(big), "-x", "c", "/dev/null"], check=True)
    finder = SymbolLookup(["ncclAllReduce"], layout_for="")
    for number in range(200):
        finder.ask(number, (str(big),))
    finder.poll()
    assert finder._task._child is not None
    pid, seen, answered = finder._task._child.pid, 0, 0
    limit = time.monotonic() + 30
    while answered < 200 and time.monotonic() < limit:
        answers = finder.poll()
        answered += len(answers)
        assert not any(answer.gone for answer in answers)
        if 0 < answered < 200 and finder._task._child is not None and finder._task._child.pid == pid:
            seen += 1
            assert rights(pid) == NONE
        time.sleep(0.005)
    finder.close()
    assert (answered, seen > 0) == (200, True)


def test_reader_of_gpus(emulated: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child that calls the driver's library has none."""
    gpus = Gpus(tmp_path / "gpus", create=2)
    monkeypatch.setenv("EMULATED_GPUS", str(gpus.path))
    child = Child([str(emulated.nvml)])
    try:
        assert child.answer(20.0) is not None
        assert rights(child.pid) == NONE
    finally:
        child.kill()
        child.ended(5.0)


def test_py_spy(tmp_path: Path) -> None:
    """What takes stacks may read other processes, and nothing else."""
    spy, status = tmp_path / "spy", tmp_path / "status"
    spy.write_text(f"#!/bin/sh\ncat /proc/self/status > {status}.new\nmv {status}.new {status}\nexit 1\n")
    spy.chmod(0o755)
    me = Processes().find(os.getpid())
    assert me is not None
    child_task = ChildTask("agent.stacks.worker")
    child_task.ask({"spy": str(spy), "processes": [(me.pid, me.start, me.stack)]})
    limit = time.monotonic() + 30
    while not status.exists() and time.monotonic() < limit:
        time.sleep(0.01)
    child_task.close()
    pairs = dict(line.split(":\t") for line in status.read_text().splitlines() if ":\t" in line)
    reading = 1 << SYS_PTRACE | 1 << DAC_READ_SEARCH
    assert {name: int(pairs[name], 16) for name in ALL} == dict.fromkeys(ALL, reading)
    assert pairs["NoNewPrivs"] == "1"


def test_nothing_comes_back() -> None:
    """A process that gave all up cannot have a program that it executes do what it may not."""
    script = (
        "from agent.system.rights import give_up; give_up()\nimport subprocess\n"
        "print(subprocess.run(['cat', '/proc/self/status'], capture_output=True, text=True).stdout)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    pairs = dict(line.split(":\t") for line in done.stdout.splitlines() if ":\t" in line)
    assert {name: int(pairs[name], 16) for name in (*ALL, "NoNewPrivs")} == NONE
