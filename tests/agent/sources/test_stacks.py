"""Stacks of processes that stand still: taken from outside, once, within bounds, whatever they are made of."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.nccl.stall import StallDetector
from agent.process.procfs import Process, Processes
from agent.sources.stacks import Stacks
from agent.stacks import worker
from agent.stacks.kernel_threads import describe, together
from agent.stacks.py_spy import SpyError, frames, parse_output, spy_path
from agent.stacks.worker import take
from emulator.libraries.build import Libraries
from store.schema.sample import Sample
from tests.agent.conftest import Caller, Still, Watch

PROGRAM = """
import sys, threading
def wait_for_data():
    print("ready", flush=True)
    sys.stdin.read()
def train():
    wait_for_data()
threading.Thread(target=threading.Event().wait, name="pin\\x1b[31m", daemon=True).start()
train()
"""


@pytest.fixture
def start() -> Iterator[Callable[..., Process]]:
    """Starts programs, waits until they say a line, and ends them."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(*command: str) -> Process:
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        started.append(child)
        assert child.stdout is not None
        child.stdout.readline()
        stat = Path(f"/proc/{child.pid}/stat")
        while ") S " not in stat.read_text():
            time.sleep(0.01)
        process = Processes().find(child.pid)
        assert process is not None
        return process

    yield begin
    for child in started:
        child.kill()
        child.communicate()


def spy_that(folder: Path, does: str) -> str:
    """A program in py-spy's place."""
    script = folder / "py-spy"
    script.write_text(f"#!/bin/sh\n{does}\n")
    script.chmod(0o755)
    return str(script)


def test_python_process(start: Callable[..., Process], tmp_path: Path) -> None:
    """Of a Python process the row has its first thread as frames, innermost first, and other threads by name."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    process = start(sys.executable, str(program))
    found = take(process, spy_path())
    lines = ["wait_for_data (program.py:5)", "train (program.py:7)", "<module> (program.py:9)"]
    assert (found["pid"], found["form"], found["error"]) == (process.pid, "python", None)
    assert found["stack"].splitlines() == lines
    assert found["threads"].startswith("pin?[31m\n")
    assert "Event.wait (threading.py:" in found["threads"]
    assert found["waits_in"].startswith("sleeps in read")


def test_helpers(start: Callable[..., Process], tmp_path: Path) -> None:
    """Processes that a rank started, such as its data loaders, are reported with it: those alike together."""
    loader = tmp_path / "loader.py"
    loader.write_text("import sys\nprint('ready', flush=True)\nsys.stdin.read()\n")
    program = tmp_path / "program.py"
    program.write_text(
        "import subprocess, sys\n"
        f"loaders = [subprocess.Popen([sys.executable, {str(loader)!r}], stdin=-1, stdout=-1) for _ in range(2)]\n"
        "for one in loaders: one.stdout.readline()\n" + PROGRAM
    )
    process = start(sys.executable, str(program))
    threads = take(process, spy_path())["threads"]
    *_, last = threads.split("\n\n")
    assert last.startswith("process python")
    assert last.splitlines()[0].endswith(" and 1 more")
    assert last.splitlines()[1:] == ["<module> (loader.py:3)"]


def test_process_without_python(start: Callable[..., Process]) -> None:
    """Of another program what the kernel tells is given, and that it is no more than that."""
    found = take(start("sh", "-c", "echo ready; read line"), spy_path())
    assert found["form"] == "kernel"
    assert "no Python" in found["error"]
    assert found["stack"].startswith("sleeps in read")


def test_other_process_of_that_number(start: Callable[..., Process]) -> None:
    """A process that took the number of the one that was meant is left alone."""
    process = start("sh", "-c", "echo ready; read line")
    found = take(Process(process.pid, process.start - 7, process.stack), spy_path())
    assert found == {"pid": process.pid, "form": "none", "error": "it has ended"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give up its rights")
def test_not_ours_to_read(start: Callable[..., Process]) -> None:
    """Somebody else's process is refused, in words, by an agent without the right."""
    process = start("sh", "-c", "echo ready; read line")
    code = (
        "import json, os; from agent.process.procfs import Processes; from agent.stacks.worker import take\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        f"print(json.dumps(take(Processes().find({process.pid}), {spy_path()!r})))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    found = json.loads(said.stdout)
    assert found["form"] == "none"
    assert "not ours to read" in found["error"]


@pytest.mark.parametrize(
    ("does", "why"),
    [
        ("exec sleep 1000", "was not done in time"),
        ("exec cat /dev/zero", "more than"),
        ("echo '[{}]'", "cannot be understood"),
        ("echo '[]'", "no thread"),
        ("echo 'Error: Permission Denied' >&2; exit 3", "py-spy: Permission Denied"),
    ],
)
def test_py_spy_that_fails(
    does: str, why: str, start: Callable[..., Process], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A py-spy that hangs, floods or talks nonsense costs a bounded time; the kernel's word is given instead."""
    monkeypatch.setattr(worker, "PATIENCE_S", 0.4 if "sleep" in does else 30.0)
    found = take(start("sh", "-c", "echo ready; read line"), spy_that(tmp_path, does))
    assert found["form"] == "kernel"
    assert why in found["error"]


def test_no_process_is_stopped(start: Callable[..., Process], tmp_path: Path) -> None:
    """py-spy is asked to read a process that runs on, and is asked again where that caught it in a change."""
    process = start("sh", "-c", "echo ready; read line")
    once = f"echo \"$@\" >> {tmp_path}/asked; [ $(wc -l < {tmp_path}/asked) -lt 2 ] && exit 1; echo '[]'"
    take(process, spy_that(tmp_path, once))
    line = f"dump --nonblocking --json --pid {process.pid}\n"
    assert (tmp_path / "asked").read_text() == 2 * line


def test_without_py_spy(start: Callable[..., Process], tmp_path: Path) -> None:
    """Where py-spy is missing that is said, with what mends it."""
    found = take(start("sh", "-c", "echo ready; read line"), str(tmp_path / "none"))
    mend = f"{sys.executable} -m pip install py-spy"
    assert (found["form"], found["error"]) == ("kernel", f"py-spy is not installed: {mend}")


def test_deep_stack() -> None:
    """Of a deep stack both ends are reported, of names so much and no sign that moves a terminal's cursor."""
    deep = [{"name": f"f{at}", "short_filename": "x/\x07y.py", "filename": "", "line": at} for at in range(317)]
    lines = frames(deep).splitlines()
    assert len(lines) == 61
    assert lines[0] == "f0 (x/?y.py:0)"
    assert lines[48] == "(257 frames are left out)"
    assert lines[-1] == "f316 (x/?y.py:316)"
    assert len(frames([{"name": "n" * 9000, "filename": "p" * 9000, "line": 3}])) < 300


@given(
    st.binary() | st.recursive(st.none() | st.text() | st.integers(), st.lists, max_leaves=5).map(repr).map(str.encode)
)
def test_any_answer_of_py_spy(output: bytes) -> None:
    """Whatever comes in place of stacks is refused by one kind of error."""
    with pytest.raises(SpyError):
        parse_output(output)


@pytest.mark.parametrize(
    ("state", "call", "place", "words"),
    [
        ("S", "202 0x7f 0x80", "futex_do_wait", "sleeps in futex (futex_do_wait)"),
        ("R", "running", "0", "runs"),
        ("D", "16 0x3", "nv_ioctl", "sleeps and cannot be woken in ioctl (nv_ioctl)"),
        ("S", "4711 0x3", "", "sleeps in system call 4711"),
        ("X", "", "", "is in state X"),
    ],
)
def test_wait_in_words(state: str, call: str, place: str, words: str) -> None:
    """State, system call and place in the kernel make one phrase; what is not known is left out."""
    assert describe(state, call, place) == words


def test_threads_alike() -> None:
    """Threads in the same place are reported once, under the first of their names."""
    assert together([("b", "x\ny"), ("c", "z"), ("a", "x\ny")], 100) == "a and 1 more\nx\ny\n\nc\nz"
    assert len(together([("a", "x" * 500)], 64)) == 64


def test_pace() -> None:
    """A process is stalled once it asked for nothing for longer than its pauses, and again after it moved."""
    stall = StallDetector(0, 100.0)
    assert not stall.is_stalled(1000.0, 8.0)  # nothing was ever asked for
    for at in range(1, 6):
        stall.observe(at, 1000.0 + at)
    assert not stall.is_stalled(1012.9, 8.0)
    assert stall.is_stalled(1013.0, 8.0)
    stall.observe(7, 1021.0)  # a pause of 16 s is usual from here on
    assert not stall.is_stalled(1021.0 + 47.9, 8.0)
    assert stall.is_stalled(1021.0 + 48.1, 8.0)
    stall.handled = True
    stall.observe(7, 1070.0)
    assert stall.handled
    stall.observe(8, 1071.0)
    assert not stall.handled


def rows_of(source: Stacks, count: int) -> list[Sample]:
    """So many rows, in as many readings as it takes."""
    found: list[Sample] = []
    for now in range(0, 2000, 10):
        found += source.read(now)
        if len(found) >= count:
            break
        time.sleep(0.05)
    source.close()
    return found


def test_processes_of_one_gpu(start: Callable[..., Process]) -> None:
    """Two processes of one GPU have a row each, at times of their own."""
    both = [start("sh", "-c", "echo ready; read line") for _ in range(2)]
    first, second = rows_of(Stacks(Still(11.0, *both), 8.0), 2)
    assert {first.values["pid"], second.values["pid"]} == {process.pid for process in both}
    assert first.values["gpu"] == second.values["gpu"] == "3"
    assert first.time != second.time
    assert float(first.values["still_seconds"] or 0) >= 11.0


def test_child_that_dies(start: Callable[..., Process], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process that was asked about gets a row, even where the child is killed over it."""
    monkeypatch.setattr("agent.sources.stacks.spy_path", lambda: spy_that(tmp_path, "kill -9 $PPID"))
    process = start("sh", "-c", "echo ready; read line")
    [row] = rows_of(Stacks(Still(11.0, process), 8.0), 1)
    parse_output = {name: row.values[name] for name in ("pid", "form", "error")}
    assert parse_output == {"pid": process.pid, "form": "none", "error": "taking stacks was cut off"}


def test_whole_way(watch: Callable[..., Watch], caller: Callable[..., Caller], emulated: Libraries) -> None:
    """A process that asks for nothing any more has its stacks taken, and taken no second time."""
    one = watch(sources=("probe", "nccl", "cuda", "stacks"), stacks_after_seconds=1.0)
    process = caller(emulated.nccl)
    one.wait_attached(emulated.nccl)
    process.call()
    [row] = one.until(lambda found: found.get("stack"))
    assert (row["pid"], row["form"]) == (process.pid, "python")
    assert "main (emulator/training/call_generator.py:" in row["stack"]
    assert row["still_seconds"] >= 1.0
    assert not any(one.read().get("stack") for _ in range(5))
