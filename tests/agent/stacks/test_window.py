"""One window of real processes: Python by py-spy, others by perf, and what is said where neither may."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from agent.stacks.py_spy import spy_path
from agent.stacks.sampled import Sampled
from agent.stacks.window import sample

TURNS = """
import sys, time
print("ready", flush=True)
def early(end):
    while time.time() < end: time.sleep(0.005)
def late():
    while True: time.sleep(0.005)
early(float(sys.argv[1])); late()
"""


def started(*command: str) -> subprocess.Popen[bytes]:
    """A process that has begun its work."""
    child = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline()
    return child


def shares(sampled: Sampled) -> dict[str, float]:
    """The share of each function."""
    counts = Counter(sampled.functions[number][1].split(" ")[0] for number in sampled.seen)
    return {name: count / len(sampled.seen) for name, count in counts.items()}


def test_the_window_is_where_it_was_asked_for(tmp_path: Path) -> None:
    """A function that ends in the middle of the window has half of it, though sampling began before."""
    begin, turn = time.monotonic() + 4.0, time.time() + 6.0
    child = started(sys.executable, "-c", TURNS, str(turn))
    try:
        taken = sample([child.pid], tmp_path, spy_path(), begin, 4.0)[child.pid]
    finally:
        child.kill()
        child.communicate()
    assert (taken.reader, taken.error) == ("py-spy", "")
    late = taken.late_seconds  # on a busy computer
    assert late < 1.5
    # With what was sampled before the window it would have 0.7 or more; on a busy computer it is starved at first.
    assert -0.3 < shares(taken.sampled)["early"] - (2.0 - late) / (4.0 - late) < 0.15
    assert 0.6 * 50 * (4.0 - late) <= len(taken.sampled.seen) <= 210
    assert 0 < taken.cpu_seconds < 5


def test_an_interrupted_window_leaves_no_sampler(tmp_path: Path) -> None:
    """Where the caller is interrupted its samplers have ended when it goes on."""

    def interrupt(done: float) -> None:
        if any(tmp_path.iterdir()) or done > 0.5:
            raise KeyboardInterrupt

    child = started(sys.executable, "-c", TURNS, "0")
    try:
        with pytest.raises(KeyboardInterrupt):
            sample([child.pid], tmp_path, spy_path(), time.monotonic() + 0.5, 30.0, tell=interrupt)
        assert not samplers(tmp_path)
    finally:
        child.kill()
        child.communicate()


def test_a_killed_window_leaves_no_sampler(tmp_path: Path) -> None:
    """Where the process that samples is killed, its samplers end with it."""
    script = (
        "import sys, time; from pathlib import Path; from agent.stacks.window import sample\n"
        "sample([int(sys.argv[1])], Path(sys.argv[2]), sys.argv[3], time.monotonic() + 1.0, 60.0,\n"
        "    tell=lambda done: print(done, flush=True))"
    )
    child = started(sys.executable, "-c", TURNS, "0")
    own = started(sys.executable, "-c", script, str(child.pid), str(tmp_path), spy_path())
    try:
        until(lambda: samplers(tmp_path))
        own.kill()
        until(lambda: not samplers(tmp_path))
    finally:
        for one in (own, child):
            one.kill()
            one.communicate()


def samplers(folder: Path) -> list[Path]:
    """Processes of py-spy that write into this folder."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            words = (place / "cmdline").read_bytes()
            if b"py-spy" in words and words.count(str(folder).encode()) and b"record" in words:
                found.append(place)
    return found


def until(holds: Callable[[], object]) -> None:
    """Wait for it."""
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.skipif(shutil.which("perf") is None, reason="perf is not installed")
def test_what_is_no_python_is_sampled_by_perf(tmp_path: Path) -> None:
    """A busy program without Python has native functions, or perf's reason, and why it was not py-spy."""
    busy = started("/bin/sh", "-c", "echo ready; while :; do :; done")
    try:
        taken = sample([busy.pid], tmp_path, spy_path(), time.monotonic() + 3.0, 6.0)[busy.pid]
    finally:
        busy.kill()
        busy.communicate()
    assert taken.error.startswith("py-spy")
    if taken.reader == "perf":
        assert any("sh" in name or "libc" in name for _, name in taken.sampled.functions)
    else:
        assert "perf" in taken.error


@pytest.mark.parametrize("perf", [True, False])
def test_without_py_spy_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, perf: bool) -> None:
    """Where py-spy is not installed the row says so, with perf's samples or without."""
    if not perf:
        monkeypatch.setenv("PATH", str(tmp_path))
    taken = sample([os.getpid()], tmp_path, "/nonexistent/py-spy", time.monotonic() + 1.0, 2.0)[os.getpid()]
    assert "py-spy is not installed" in taken.error
    assert perf or "perf is not installed either" in taken.error


def test_a_process_of_another_user_is_not_ours(tmp_path: Path) -> None:
    """A sampler without rights says in plain words that it may not read the process."""
    if os.geteuid():
        pytest.skip("it takes root to give up rights")
    script = (
        "import os,sys,time; from pathlib import Path; os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "from agent.stacks import window; os.environ['PATH'] = ''\n"
        "pid, folder, spy = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]\n"
        "print(window.sample([pid], folder, spy, time.monotonic() + 3.0, 1.0)[pid].error)"
    )
    tmp_path.chmod(0o777)
    own = started(sys.executable, "-c", TURNS, "0")
    try:
        root = str(Path(__file__).parents[3])
        done = subprocess.run(
            [sys.executable, "-c", script, str(own.pid), str(tmp_path), spy_path()],
            capture_output=True, text=True, cwd=root, check=False, timeout=60,
        )  # fmt: skip
    finally:
        own.kill()
        own.communicate()
    assert done.stdout.strip() == "py-spy is not permitted to read it: that takes root, or its own user", done.stderr
