"""Short-lived processes without end, numbers that are used again, and names with escape codes."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from agent.process.procfs import Processes
from agent.stacks.kernel_threads import read_thread

A_MINUTE, PROCESSES = 10_000, 600
STORM = f"i=0; while [ $i -lt {PROCESSES} ]; do (:) & i=$((i + 1)); done; wait"


def test_ten_thousand_processes_a_minute() -> None:
    """Scans go on, cost little, and remember no process that has ended."""
    processes, scans = Processes(), 0
    list(processes.changed())
    begun, spent = time.monotonic(), time.thread_time()
    with subprocess.Popen(["/bin/sh", "-c", STORM]) as storm:
        while storm.poll() is None:
            assert all(process.start > 0 for process, _ in processes.changed())
            scans += 1
            time.sleep(0.1)
    took, spent = time.monotonic() - begun, time.thread_time() - spent
    assert storm.returncode == 0
    assert PROCESSES / took > A_MINUTE / 60
    assert spent / scans < 0.1
    list(processes.changed())
    alive = {int(name) for name in os.listdir("/proc") if name.isdecimal()}
    known = {*processes._seen, *processes._calm, *processes._due}
    assert len(known - alive) < 10


def one(root: Path, pid: int, start: int, name: bytes = b"python") -> None:
    """A process in a /proc of our own."""
    (root / str(pid)).mkdir(exist_ok=True)
    fields = [b"S", *[b"1"] * 18, b"%d" % start, b"4096", b"77", *[b"1"] * 4, b"140000", *[b"1"] * 30]
    (root / str(pid) / "stat").write_bytes(b"%d (%b) %b" % (pid, name, b" ".join(fields)))
    (root / str(pid) / "maps").write_text("7f00-7f01 r-xp 00000000 08:01 5 /usr/lib/libnccl.so.2\n")


def test_a_number_that_is_used_again(tmp_path: Path) -> None:
    """The process that has the number now is another one: it is looked at, and the one before is not alive."""
    processes = Processes(tmp_path)
    one(tmp_path, 41, 1000)
    ((first, _),) = processes.changed()
    assert list(processes.changed()) == []
    one(tmp_path, 41, 2000, b"\x1b]0;owned\x07) Z 1 (")
    ((second, files),) = processes.changed()
    assert (first.pid, first.start, second.pid, second.start) == (41, 1000, 41, 2000)
    assert (processes.alive(first), processes.alive(second)) == (False, True)
    assert [file.path for file in files] == ["/usr/lib/libnccl.so.2"]


def test_a_name_with_escape_codes_is_printable(tmp_path: Path) -> None:
    """What the process calls itself reaches no terminal as it is."""
    one(tmp_path, 43, 1000, b"\x1b]0;owned\x07\x1b[2J\n")
    name = read_thread(tmp_path / "43").name
    assert name.isprintable()
    assert "\x1b" not in name
