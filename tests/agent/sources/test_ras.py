"""NCCL's own status: asked as its protocol wants, of those versions that can be asked, and believed within bounds."""

from __future__ import annotations

import fcntl
import json
import os
import select
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent.nccl.ras import worker as ras_worker
from agent.nccl.ras.status import StatusError, communicators
from agent.nccl.ras.worker import ask, port_of
from agent.process.procfs import Process, Processes
from agent.sources.ras import Ras, is_first
from agent.system.child_process import ChildTask
from store.schema.sample import Sample
from tests.agent.conftest import Still

TIOCSPTLCK, TIOCGPTN = 0x40045431, 0x80045430  # asm-generic/ioctls.h: unlock a pseudoterminal, and its number
MAPPER = """
import mmap, sys
with open(sys.argv[1], "rb") as file:
    held = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC)
print("ready", flush=True)
sys.stdin.read()
"""


def rank(number: int, launched: int, **status: Any) -> dict[str, Any]:
    """A rank as the status tells of it."""
    said = {"init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False, "abort_flag": False}
    counts = {"Broadcast": 3, "AllReduce": launched, "SendRecv": number, "Send": 5 * number}
    place = {"rank": number, "host": f"10.0.0.{number}", "pid": 70 + number, "cuda_dev": 0, "nvml_dev": number}
    return {**place, "status": said | status, "collective_counts": counts}


def absent(number: int, **status: Any) -> dict[str, Any]:
    """A rank that did not answer."""
    said = {"unresponsive": True, "considered_dead": False} | status
    return {"rank": number, "host": "unknown", "pid": -1, "cuda_dev": 0, "nvml_dev": number, "status": said}


def status(*groups: tuple[list[dict[str, Any]], list[dict[str, Any]]]) -> dict[str, Any]:
    """The whole status: a communicator for each pair of those that answered and those that did not."""
    found = [
        {
            "hash": hex(0xC0FFEE00 + at),
            "secondary_hash": "0x1:0x2",
            "size": len(ranks) + len(missing),
            "ranks_count": len(ranks),
            "missing_ranks_count": len(missing),
            "ranks": ranks,
            "missing_ranks": missing,
        }
        for at, (ranks, missing) in enumerate(groups)
    ]
    head = {"nccl_version": "2.29.3", "cuda_runtime_version": 12090, "cuda_driver_version": 13000, "timestamp": "now"}
    footer = {"collection_time_sec": 0.125, "timeouts_count": 0}
    return {**head, "communicators_count": len(found), "communicators": found, "ras": footer}


HANG = status(([rank(0, 41), rank(1, 41)], []), ([rank(0, 41), rank(1, 40), rank(3, 41)], [absent(2)]))


class Server:
    """Speaks as NCCL's status thread does, on one connection after the other; `bent` changes what it says."""

    def __init__(self, port: int = 0, bent: str = "", said: Any = HANG) -> None:
        self.bent, self.said = bent, json.dumps(said).encode()
        self.lines: list[str] = []
        self.listener = socket.create_server(("127.0.0.1", port))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        """Answer until it is closed."""
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            with connection, connection.makefile("rb") as lines:
                try:
                    self.answer(connection, lines)
                except OSError:
                    continue  # the other side has had enough

    def answer(self, connection: socket.socket, lines: Any) -> None:
        """One client, line by line."""
        for line in lines:
            self.lines.append(line.decode().strip())
            word = self.lines[-1].lower()
            if word == "status":
                while self.bent == "flood":
                    connection.sendall(b" " * (1 << 20))
                connection.sendall(b"{" if self.bent == "torn" else self.said)
                return
            if self.bent == "mute":
                continue
            if word.startswith("client protocol "):
                connection.sendall(b"HTTP/1.1 400 Bad\n" if self.bent == "stranger" else b"SERVER PROTOCOL 2\n")
            elif word.startswith("set format ") and self.bent == "text only":
                connection.sendall(f"ERROR: Unknown command {self.lines[-1]}\n".encode())
            else:
                connection.sendall(b"OK\n")


@pytest.fixture
def server() -> Iterator[Callable[..., Server]]:
    """Opens servers and closes them."""
    opened: list[Server] = []

    def make(**options: Any) -> Server:
        opened.append(Server(**options))
        return opened[-1]

    yield make
    for one in opened:
        one.listener.close()


@pytest.fixture
def member(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Starts processes that map a libnccl of some version, with some environment."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(version: str = "2.29.3+cuda12.9", **environment: str) -> Process:
        library = tmp_path / "libnccl.so.2"
        library.write_bytes(b"\0" * 5000 + f"NCCL version {version}\0".encode())
        child = subprocess.Popen(
            [sys.executable, "-c", MAPPER, str(library)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | environment,
        )
        started.append(child)
        assert child.stdout is not None
        child.stdout.readline()
        process = Processes().find(child.pid)
        assert process is not None
        return process

    yield begin
    for child in started:
        child.kill()
        child.communicate()


def test_what_is_reported() -> None:
    """Who is behind and who does not answer is named; communicators with something to say come first."""
    bent, fine = communicators(json.dumps(HANG).encode())
    assert (bent["comm"], bent["ranks"], bent["answered"]) == ("00000000c0ffee01", 4.0, 3.0)
    assert bent["behind"] == "rank 1 (10.0.0.1 GPU 1, pid 71) launched 40 AllReduce, the first 41"
    assert bent["missing"] == "rank 2 (unknown GPU 2, pid -1) does not answer"
    assert (fine["comm"], fine["behind"], fine["missing"], fine["failed"]) == ("00000000c0ffee00", None, None, None)
    assert (fine["version"], fine["collection_seconds"]) == ("2.29.3", 0.125)


def test_errors_and_deaths() -> None:
    """Errors, aborts and the dead are reported; an operation that is in progress is no error."""
    ranks = [rank(0, 9, async_error=7), rank(1, 9, async_error=6), rank(2, 9, abort_flag=True, init_state=3)]
    [row] = communicators(json.dumps(status((ranks, [absent(3, considered_dead=True)]))).encode())
    assert row["failed"] == (
        "rank 1 (10.0.0.1 GPU 1, pid 71) has the error 6; rank 2 (10.0.0.2 GPU 2, pid 72) is in state 3 and was aborted"
    )
    assert row["missing"] == "rank 3 (unknown GPU 3, pid -1) is dead"


def test_bounds() -> None:
    """Of many ranks some are named and the rest counted; of many communicators the first; no control sign passes."""
    crowd = [rank(number, 4 if number else 5) | {"host": "\x1b[2J" * 40} for number in range(300)]
    rows = list(communicators(json.dumps(status(*[(crowd, [])] * 50)).encode()))
    assert len(rows) == 32
    behind = str(rows[0]["behind"])
    assert behind.endswith("; and 291 more")
    assert len(behind) < 700
    assert "\x1b" not in behind


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=6,
)


@given(st.binary() | json_values.map(json.dumps).map(str.encode))
def test_any_text(text: bytes) -> None:
    """What is no status is refused by one kind of error."""
    with pytest.raises(StatusError, match="cannot be understood"):
        list(communicators(text))


@example("status", True)
@example("collective_counts", 1.0)
@given(st.sampled_from(["rank", "status", "collective_counts", "nvml_dev", "pid"]), json_values)
def test_any_rank(field: str, value: Any) -> None:
    """A rank in another form makes rows or that error, nothing else."""
    said = status(([rank(0, 1) | {field: value}], []))
    try:
        assert len(list(communicators(json.dumps(said).encode()))) == 1
    except StatusError:
        assert (type(value), value) != (int, 1)  # True is 1 too, and no number here


def test_the_talk(server: Callable[..., Server], member: Callable[..., Process]) -> None:
    """The lines of the protocol are said in their order, and the status is read until the server hangs up."""
    one = server()
    rows = ask(member(NCCL_RAS_ADDR=f"localhost:{one.port}"))
    assert [row["answered"] for row in rows] == [3.0, 2.0]
    assert one.lines == ["CLIENT PROTOCOL 2", "TIMEOUT 5", "SET FORMAT json", "STATUS"]


@pytest.mark.parametrize(
    ("bent", "why"),
    [
        ("mute", "did not end"),
        ("flood", "did not end"),
        ("torn", "cannot be understood"),
        ("stranger", "does not speak as NCCL does"),
        ("text only", "does not speak as NCCL does"),
    ],
)
def test_servers_that_are_none(
    bent: str,
    why: str,
    server: Callable[..., Server],
    member: Callable[..., Process],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever else listens there, or says too little or too much, costs a bounded time and memory."""
    monkeypatch.setattr(ras_worker, "PATIENCE_S", 0.5 if bent == "mute" else 60.0)
    with pytest.raises((StatusError, TimeoutError), match=f"{why}|timed out"):
        ask(member(NCCL_RAS_ADDR=f"localhost:{server(bent=bent).port}"))


@pytest.mark.parametrize(
    ("version", "why"),
    [("2.28.9+cuda13.0", "an answer of NCCL 2.28.9 can crash"), ("unheard of", "version of its NCCL is not known")],
)
def test_versions(version: str, why: str, server: Callable[..., Server], member: Callable[..., Process]) -> None:
    """A version with a status that can crash the task, or that is not known, is not even connected to."""
    one = server()
    with pytest.raises(StatusError, match=why):
        ask(member(version, NCCL_RAS_ADDR=f"localhost:{one.port}"))
    assert one.lines == []


def test_a_device_is_not_opened(member: Callable[..., Process], monkeypatch: pytest.MonkeyPatch) -> None:
    """A path of a library may lead to a pipe by now, or to a device, which the mere opening may start."""
    controller = os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    fcntl.ioctl(controller, TIOCSPTLCK, struct.pack("i", 0))
    (number,) = struct.unpack("i", fcntl.ioctl(controller, TIOCGPTN, bytes(4)))
    monkeypatch.setattr(Processes, "paths", lambda *_: (f"/dev/pts/{number}",))
    with pytest.raises(StatusError, match="version of its NCCL is not known"):
        ask(member())
    watched = select.poll()
    watched.register(controller, 0)
    assert watched.poll(0) == []  # once its terminal was opened and closed it says so for ever
    os.close(controller)


@pytest.mark.parametrize(
    ("environment", "port"),
    [
        ({}, 28028),
        ({"NCCL_RAS_ADDR": "[::1]:511"}, 511),
        ({"NCCL_RAS_ADDR": "0.0.0.0:77"}, 77),
        ({"NCCL_RAS_ADDR": ":78"}, 78),
        ({"NCCL_RAS_ADDR": "10.3.2.1:77"}, None),
        ({"NCCL_RAS_ADDR": "localhost:70000"}, None),
        ({"NCCL_RAS_ADDR": "localhost"}, None),
        ({"NCCL_RAS_ENABLE": "0"}, None),
    ],
)
def test_where_it_listens(environment: dict[str, str], port: int | None) -> None:
    """A process's environment says where it listens; whatever is not this machine's loopback is not asked."""
    if port is None:
        with pytest.raises(StatusError, match="not asked"):
            port_of(environment)
    else:
        assert port_of(environment) == port


def serve_in_namespace() -> None:
    """Be a rank with a status thread on the default port of a network namespace of its own (the tests' own child)."""
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", b"lo", 1))  # SIOCSIFFLAGS, IFF_UP (linux/sockios.h)
    Server(28028)
    exec(MAPPER)  # noqa: S102 - the same as the other processes do


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make network namespaces")
def test_in_a_network_namespace(member: Callable[..., Process], tmp_path: Path) -> None:
    """A task in a namespace of its own is asked there."""
    member()  # leaves a library
    code = "from tests.agent.sources.test_ras import serve_in_namespace; serve_in_namespace()"
    command = ["unshare", "--net", sys.executable, "-c", code, str(tmp_path / "libnccl.so.2")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        process, child_task = Processes().find(child.pid), ChildTask("agent.nccl.ras.worker")
        assert process is not None
        child_task.ask({"process": astuple(process)})
        rows: list[dict[str, Any]] = []
        while child_task.under_way:
            rows += child_task.poll()
            time.sleep(0.02)
        child.kill()
    assert [row.get("answered") for row in rows] == [3.0, 2.0], rows


def test_first_rank() -> None:
    """The launcher's first word on the rank counts; without one no process is the first."""
    assert is_first({"RANK": "0"})
    assert is_first({"SLURM_PROCID": "0"})
    assert not is_first({"RANK": "3", "SLURM_PROCID": "0"})
    assert not is_first({})


def test_rank_0_is_asked_once(server: Callable[..., Server], member: Callable[..., Process]) -> None:
    """Of the ranks of a machine the first of the task is asked, once a stall, and no other is."""
    one = server()
    where = {"NCCL_RAS_ADDR": f"127.0.0.1:{one.port}"}
    source = Ras(Still(31.0, member(RANK="2", **where), member(RANK="0", **where)), Processes(), 20.0)
    rows: list[Sample] = []
    while len(rows) < 2:
        rows += source.read(1)
        time.sleep(0.05)
    assert [row.values["slot"] for row in rows] == ["0", "1"]
    assert not any(source.read(now) for now in range(5))
    source.close()
    assert one.lines.count("STATUS") == 1


@pytest.mark.parametrize(
    ("bent", "why"),
    [
        ("shut", "no answer: Connection refused"),
        ("torn", "the answer cannot be understood"),
        ("stranger", "what listens there does not speak as NCCL does"),
    ],
)
def test_why_there_is_no_answer(
    bent: str, why: str, server: Callable[..., Server], member: Callable[..., Process]
) -> None:
    """A task that cannot be asked, or answers nonsense, has a row that says why."""
    one = server(bent=bent)
    if bent == "shut":
        one.listener.shutdown(socket.SHUT_RDWR)
        one.listener.close()
    source = Ras(Still(31.0, member(RANK="0", NCCL_RAS_ADDR=f"127.0.0.1:{one.port}")), Processes(), 20.0)
    rows: list[Sample] = []
    while not rows:
        rows += source.read(1)
        time.sleep(0.05)
    source.close()
    assert [row.values for row in rows] == [{"slot": "0", "error": why}]
