"""The child that takes stacks: py-spy for Python, /proc for the rest, within bounds of time and memory."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agent.process.procfs import Process, Processes
from agent.stacks.kernel_threads import Thread, read_thread, read_threads, together
from agent.stacks.py_spy import SpyError, spy_on
from agent.system.rights import DAC_READ_SEARCH, SYS_ADMIN, SYS_PTRACE, give_up, yield_to_others

PATIENCE_S = 5.0
"""How long one process may take, with those that it started."""
CPU_SECONDS, DATA_BYTES = 10, 256 << 20
"""Of this child, and of py-spy each time."""
_HELPERS = 16


def main() -> None:
    """Answer one request from standard input, one JSON line a process."""
    yield_to_others(19)
    give_up((SYS_ADMIN,), (SYS_PTRACE, DAC_READ_SEARCH))  # the former for the kernel's own frames, not for py-spy
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_DATA, (DATA_BYTES, DATA_BYTES))
    request = json.load(sys.stdin)
    for pid, start, stack in request["processes"]:
        print(json.dumps(take(Process(pid, start, stack), request["spy"])), flush=True)


def take(process: Process, spy: str) -> dict[str, Any]:
    """What one process is at: its form, the stack of its first thread, those of the others, and of what it started."""
    deadline = time.monotonic() + PATIENCE_S
    try:
        answer = _look(process, spy, deadline) if Processes().alive(process) else _nothing("it has ended")
        if not Processes().alive(process):  # the stack may be another process's
            answer = _nothing("it has ended")
    except (FileNotFoundError, ProcessLookupError):
        answer = _nothing("it has ended")
    except OSError as error:
        answer = _nothing(f"it is not ours to read: {error.strerror}")
    return {"pid": process.pid, **answer}


def _look(process: Process, spy: str, deadline: float) -> dict[str, Any]:
    """What a living process is at. Raises OSError where it is not ours to read."""
    with open(f"/proc/{process.pid}/mem", "rb", buffering=0):
        threads = read_threads(Path("/proc") / str(process.pid))
    answer: dict[str, Any] = {"waits_in": threads[0].waits_in, **_kernel(threads)}
    try:
        answer |= {"form": "python", "error": None, **spy_on(process.pid, spy, deadline)}
    except SpyError as error:
        answer |= {"form": "kernel", "error": str(error)}
    helpers = together(_helpers(process.pid, spy, deadline))
    answer["threads"] = "\n\n".join(filter(None, (answer["threads"], helpers)))
    return answer


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
            stack = spy_on(int(helper), spy, deadline)["stack"]
        except SpyError:
            stack = thread.waits_in
        yield f"process {thread.name}", stack


def _read(path: str) -> str:
    with open(path, "rb", buffering=0) as file:
        return (file.read(4096) or b"").decode(errors="replace")


def _kernel(threads: list[Thread]) -> dict[str, str]:
    def text(thread: Thread) -> str:
        return "\n".join((thread.waits_in, *thread.frames))

    others = together((thread.name, text(thread)) for thread in threads[1:])
    return {"stack": text(threads[0]), "threads": others}


def _nothing(why: str) -> dict[str, Any]:
    return {"form": "none", "error": why}


if __name__ == "__main__":
    main()
