"""Runs py-spy, which reads the stacks of a Python process from outside, and parses its output.

No process is stopped: memory is read while it runs, which is enough for one that is stalled. What py-spy finds
is under the control of others.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from agent.stacks.kernel_threads import TEXT_BYTES, plain, together

OUTPUT_BYTES = 4 << 20
_TRIES = 3
"""A process that still moves may be caught in the middle of a change."""
_DEATH_S = 1.0
_INNER, _OUTER = 48, 12
"""Frames that are reported of a deep stack."""


def spy_path() -> str:
    """Where py-spy is installed beside this program; the file need not be there."""
    return str(Path(sys.prefix, "bin", "py-spy"))


class SpyError(Exception):
    """py-spy gave no stacks; the message says why."""


def spy_on(pid: int, spy: str, deadline: float) -> dict[str, str]:
    """The stack of a process's first thread, and its other threads, by the deadline (monotonic s). Raises SpyError."""
    if not os.access(spy, os.X_OK):
        raise SpyError(f"py-spy is not installed: {sys.executable} -m pip install py-spy")
    for _ in range(_TRIES):
        output, error, code = _run([spy, "dump", "--nonblocking", "--json", "--pid", str(pid)], deadline)
        if code == 0:
            return parse_output(output)
        why = plain(error.decode(errors="replace").strip().split("\n")[0].removeprefix("Error: "), 160)
        if "python version" in why:
            raise SpyError("it runs no Python that py-spy knows")
        if time.monotonic() >= deadline:
            raise SpyError("py-spy was not done in time")
    raise SpyError(f"py-spy: {why or f'it ended with {code}'}")


def parse_output(output: bytes) -> dict[str, str]:
    """The first thread's stack and the others' from what py-spy prints as JSON. Raises SpyError."""
    try:
        traces = json.loads(output)
        stacks = [(plain(str(trace["thread_name"]), 64), frames(trace["frames"])) for trace in traces]
    except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError, MemoryError):
        raise SpyError("py-spy answers what cannot be understood") from None
    if not stacks:
        raise SpyError("py-spy sees no thread")
    # py-spy tells the newest thread first. A program may give its threads any name.
    first = next((at for at, (name, _) in enumerate(stacks) if name == "MainThread"), len(stacks) - 1)
    others = stacks[:first] + stacks[first + 1 :]
    return {"stack": stacks[first][1][:TEXT_BYTES], "threads": together(others)}


def frames(found: list[dict[str, Any]]) -> str:
    """One frame a line, innermost first: `wait (emulator/training/rank.py:86)`."""
    lines = []
    for frame in found[:_INNER] + found[max(_INNER, len(found) - _OUTER) :]:
        file = str(frame.get("short_filename") or frame["filename"])
        lines.append(f"{plain(str(frame['name']), 120)} ({plain(file[-120:], 120)}:{int(frame['line'])})")
    left_out = len(found) - len(lines)
    return "\n".join(lines[:_INNER] + [f"({left_out} frames are left out)"] * (left_out > 0) + lines[_INNER:])


def _run(command: Sequence[str], deadline: float) -> tuple[bytes, bytes, int | None]:
    """What a program says, and how it ended; None: it was killed at the deadline (monotonic seconds).

    Raises SpyError for one that says more than OUTPUT_BYTES.
    """
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={"RUST_BACKTRACE": "0"},
    )
    assert child.stdout is not None
    assert child.stderr is not None
    said = {pipe.fileno(): b"" for pipe in (child.stdout, child.stderr)}
    try:
        for pipe, chunk in _chunks(list(said), deadline):
            said[pipe] += chunk
            if len(said[pipe]) > OUTPUT_BYTES:
                raise SpyError(f"py-spy says more than {OUTPUT_BYTES >> 20} MB")
        with suppress(subprocess.TimeoutExpired):
            child.wait(max(deadline - time.monotonic(), 0.0))
    finally:
        child.stdout.close()
        child.stderr.close()
        if child.returncode is None:
            child.kill()
            with suppress(subprocess.TimeoutExpired):  # it waits for a file system that does not answer: left behind
                child.wait(_DEATH_S)
    output, error = said.values()
    return output, error, child.returncode if child.returncode != -signal.SIGKILL else None


def _chunks(pipes: list[int], deadline: float) -> Iterator[tuple[int, bytes]]:
    """What comes from the pipes until all are closed, or the deadline."""
    poll = select.poll()
    for pipe in pipes:
        poll.register(pipe, select.POLLIN)
    left = len(pipes)
    while left and (rest := deadline - time.monotonic()) > 0:
        for pipe, _ in poll.poll(rest * 1000):
            chunk = os.read(pipe, 1 << 16)
            if chunk:
                yield pipe, chunk
            else:
                poll.unregister(pipe)
                left -= 1
