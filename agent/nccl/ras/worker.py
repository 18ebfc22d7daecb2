"""The child that asks NCCL's own status socket (RAS) about a task, from the network namespace of one of its ranks.

The protocol is NCCL's (src/ras/client_support.cc): a line is asked, a line is answered, and the status comes until the
server hangs up. Any program may listen there and answer: all of it is bounded.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import re
import resource
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

from agent.nccl.ras.status import LEAST, StatusError, communicators
from agent.process.procfs import Process, Processes
from agent.system.file_identity import open_plain
from agent.system.rights import CHECKPOINT_RESTORE, DAC_READ_SEARCH, SYS_ADMIN, SYS_PTRACE, give_up, yield_to_others

PORT = 28028
ANSWER_BYTES = 16 << 20
CPU_SECONDS, DATA_BYTES = 10, 512 << 20
GATHER_S, PATIENCE_S = 5, 20.0
"""How long the server may wait for the ranks, and the agent for the server."""
_CLONE_NEWNET = 0x40000000  # include/uapi/linux/sched.h
_VERSION = re.compile(rb"NCCL version ([0-9]{1,3})\.([0-9]{1,3})\.([0-9]{1,3})")
_HERE = ("localhost", "127.0.0.1", "::1", "0.0.0.0", "::", "")  # noqa: S104 - where it may listen, not we


def main() -> None:
    """Answer one request from standard input: a line a communicator, or one that says why there is none."""
    yield_to_others(19)
    give_up((SYS_PTRACE, DAC_READ_SEARCH, CHECKPOINT_RESTORE, SYS_ADMIN))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_DATA, (DATA_BYTES, DATA_BYTES))
    try:
        found = ask(Process(*json.load(sys.stdin)["process"]), give_up)
    except (StatusError, OSError) as error:
        found = [{"error": str(error) if isinstance(error, StatusError) else f"no answer: {error.strerror or error}"}]
    for answer in found:
        print(json.dumps(answer), flush=True)


def ask(process: Process, entered: Callable[[], None] = lambda: None) -> list[dict[str, Any]]:
    """What the task of that process tells of its communicators; `entered` is called before it is asked.

    Raises StatusError and OSError.
    """
    processes = Processes()
    if not processes.alive(process):
        raise StatusError("the process has ended")
    version = _version(processes, process)
    if version < LEAST:
        raise StatusError(f"not asked: an answer of NCCL {_dotted(version)} can crash the task, see docs/stacks.md")
    port = port_of(processes.environment(process.pid))
    _enter(process.pid)
    entered()
    return list(communicators(_talk(port, time.monotonic() + PATIENCE_S)))


def port_of(environment: dict[str, str]) -> int:
    """Where a process listens on the loopback, by its environment. Raises StatusError where it does not."""
    if environment.get("NCCL_RAS_ENABLE", "1").strip() == "0":
        raise StatusError("not asked: NCCL_RAS_ENABLE is 0")
    host, _, port = environment.get("NCCL_RAS_ADDR", f"localhost:{PORT}").strip().rpartition(":")
    if host.strip("[]") not in _HERE or not re.fullmatch(r"[0-9]{1,5}", port) or not 0 < int(port) < 65536:
        raise StatusError("not asked: NCCL_RAS_ADDR is not on this machine's loopback")
    return int(port)


def _version(processes: Processes, process: Process) -> tuple[int, ...]:
    """What the library that a process maps calls itself. Raises StatusError where that cannot be read."""
    for file in processes.files(process):
        if "nccl" not in os.path.basename(file.path):
            continue
        for path in processes.paths(file):
            try:
                with open_plain(path) as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
                    if found := _VERSION.search(data):
                        return tuple(map(int, found.groups()))
            except (OSError, ValueError):
                continue  # of an empty file, or one that is gone
    raise StatusError("not asked: the version of its NCCL is not known")


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _enter(pid: int) -> None:
    """Go into the network namespace of a process, if it has another one. Raises StatusError."""
    place = f"/proc/{pid}/ns/net"
    if os.stat(place).st_ino == os.stat("/proc/self/ns/net").st_ino:
        return
    namespace = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
    if ctypes.CDLL(None, use_errno=True).setns(namespace, _CLONE_NEWNET):
        raise StatusError("not asked: its network namespace cannot be entered without CAP_SYS_ADMIN")


def _talk(port: int, deadline: float) -> bytes:
    """The status as JSON. Raises StatusError and OSError."""
    with socket.create_connection(("localhost", port), GATHER_S) as connection:
        for line, wanted in (
            (b"CLIENT PROTOCOL 2", b"SERVER PROTOCOL"),
            (b"TIMEOUT %d" % GATHER_S, b"OK"),
            (b"SET FORMAT json", b"OK"),
        ):
            connection.sendall(line + b"\n")
            if not _receive(connection, deadline, 200, b"\n").startswith(wanted):
                raise StatusError("what listens there does not speak as NCCL does")
        connection.sendall(b"STATUS\n")
        return _receive(connection, deadline, ANSWER_BYTES, None)


def _receive(connection: socket.socket, deadline: float, most: int, end: bytes | None) -> bytes:
    """What is sent, up to an end or until the other side hangs up. Raises StatusError where it is too much, or slow."""
    found = bytearray()
    while end is None or end not in found:
        left = deadline - time.monotonic()
        if left <= 0 or len(found) > most:
            raise StatusError(f"the answer did not end within {PATIENCE_S:.0f} s and {ANSWER_BYTES >> 20} MB")
        connection.settimeout(left)
        chunk = connection.recv(1 << 16)
        if not chunk:
            break
        found += chunk
    return bytes(found)


if __name__ == "__main__":
    main()
