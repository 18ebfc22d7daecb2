"""The child that takes stacks: py-spy for Python, the kernel's word for the rest, within bounds of time and memory.

Nobody is stopped: memory is read while the process runs, which is enough of one that stands still. What is read is
under the control of others, so all of it is bounded.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from agent.processes import Process, Processes
from agent.threads import Thread, plain, read_thread, read_threads, together

PATIENCE_S = 5.0
"""How long one process may take, with those that it started."""
CPU_SECONDS, DATA_BYTES = 10, 256 << 20
"""Of this child, and of py-spy each time."""
OUTPUT_BYTES = 4 << 20
TEXT_BYTES = 8000
_TRIES = 3
"""A process that still moves may be caught in the middle of a change."""
_DEATH_S = 0.2
_HELPERS = 16
_INNER, _OUTER = 48, 12
"""Frames that are kept of a deep stack."""


def spy_path() -> str:
    """Where py-spy is installed beside this program; the file need not be there."""
    return str(Path(sys.prefix, "bin", "py-spy"))


class SpyError(Exception):
    """py-spy gave no stacks; the message says why."""


def main() -> None:
    """Answer one request from standard input, one JSON line a process."""
    os.nice(19)
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_DATA, (DATA_BYTES, DATA_BYTES))
    request = json.load(sys.stdin)
    for pid, start, stack in request["processes"]:
        print(json.dumps(take(Process(pid, start, stack), request["spy"])), flush=True)


def take(process: Process, spy: str) -> dict[str, Any]:
    """What one process is at: its form, the stack of its first thread, those of the others, and of what it started."""
    processes, deadline = Processes(), time.monotonic() + PATIENCE_S
    try:
        if not processes.alive(process):
            return _nothing(process, "it has ended")
        with open(f"/proc/{process.pid}/mem", "rb", buffering=0):
            threads = read_threads(Path("/proc") / str(process.pid))
    except OSError as error:
        return _nothing(process, f"it is not ours to read: {error.strerror}")
    answer: dict[str, Any] = {"waits_in": threads[0].waits_in, **_kernel(threads)}
    try:
        answer |= {"form": "python", "error": None, **told(_spy(process.pid, spy, deadline))}
    except SpyError as error:
        answer |= {"form": "kernel", "error": str(error)}
    helpers = together(_helpers(process.pid, spy, deadline), TEXT_BYTES)
    answer["threads"] = "\n\n".join(filter(None, (answer["threads"], helpers)))
    if not processes.alive(process):
        return _nothing(process, "it has ended")  # and whose stack it was cannot be known
    return {"pid": process.pid, **answer}


def _helpers(pid: int, spy: str, deadline: float) -> Iterator[tuple[str, str]]:
    """Processes that a process started, such as data loaders: name and stack, as long as there is time."""
    try:
        started = _read(f"/proc/{pid}/task/{pid}/children").split()[:_HELPERS]
    except OSError:  # it has ended, or the kernel was built without CONFIG_PROC_CHILDREN
        return
    for helper in started:
        try:
            if os.stat(f"/proc/{helper}").st_uid != os.stat(f"/proc/{pid}").st_uid:
                continue
            thread = read_thread(Path("/proc", helper, "task", helper))
        except OSError:
            continue  # it has ended
        try:
            stack = told(_spy(int(helper), spy, deadline))["stack"]
        except SpyError:
            stack = thread.waits_in
        yield f"process {thread.name}", stack


def _read(path: str) -> str:
    with open(path, "rb", buffering=0) as file:
        return (file.read(4096) or b"").decode(errors="replace")


def told(output: bytes) -> dict[str, str]:
    """The first thread's stack and the others' from what py-spy prints as JSON. Raises SpyError."""
    try:
        traces = json.loads(output)
        stacks = [(plain(str(trace["thread_name"]), 64), frames(trace["frames"])) for trace in traces]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, MemoryError):
        raise SpyError("py-spy answers what cannot be understood") from None
    if not stacks:
        raise SpyError("py-spy sees no thread")
    # py-spy tells the newest thread first. A program may give its threads any name.
    first = next((at for at, (name, _) in enumerate(stacks) if name == "MainThread"), len(stacks) - 1)
    others = stacks[:first] + stacks[first + 1 :]
    return {"stack": stacks[first][1][:TEXT_BYTES], "threads": together(others, TEXT_BYTES)}


def frames(found: list[dict[str, Any]]) -> str:
    """One frame a line, innermost first: `wait (emulator/rank.py:86)`."""
    lines = []
    for frame in found[:_INNER] + found[max(_INNER, len(found) - _OUTER) :]:
        file = str(frame.get("short_filename") or frame["filename"])
        lines.append(f"{plain(str(frame['name']), 120)} ({plain(file[-120:], 120)}:{int(frame['line'])})")
    left_out = len(found) - len(lines)
    return "\n".join(lines[:_INNER] + [f"({left_out} frames are left out)"] * (left_out > 0) + lines[_INNER:])


def _kernel(threads: list[Thread]) -> dict[str, str]:
    def text(thread: Thread) -> str:
        return "\n".join((thread.waits_in, *thread.frames))

    others = together(((thread.name, text(thread)) for thread in threads[1:]), TEXT_BYTES)
    return {"stack": text(threads[0]), "threads": others}


def _nothing(process: Process, why: str) -> dict[str, Any]:
    return {"pid": process.pid, "form": "none", "error": why}


def _spy(pid: int, spy: str, deadline: float) -> bytes:
    """py-spy's own words, by the deadline (monotonic seconds). Raises SpyError."""
    if not os.access(spy, os.X_OK):
        raise SpyError("py-spy is not installed: pip install py-spy")
    for _ in range(_TRIES):
        output, error, code = _run([spy, "dump", "--nonblocking", "--json", "--pid", str(pid)], deadline)
        if code == 0:
            return output
        why = plain(error.decode(errors="replace").strip().split("\n")[0].removeprefix("Error: "), 160)
        if "python version" in why:
            raise SpyError("it runs no Python that py-spy knows")
        if time.monotonic() >= deadline:
            raise SpyError(f"py-spy was not done after {PATIENCE_S:.0f} s")
    raise SpyError(f"py-spy: {why or f'it ended with {code}'}")


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


if __name__ == "__main__":
    main()
