"""How training processes come up: what is seen of a process from its start on, and what is not known stays so."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.sources.startup import Beginning, parse_io
from emulator.libraries.build import Libraries

SECOND = 10**9
SOURCES = ("probe", "nccl", "cuda", "startup")
IO = b"rchar: 7340033\nwchar: 11\nsyscr: 13\nsyscw: 17\nread_bytes: 4096\nwrite_bytes: 19\ncancelled_write_bytes: 0\n"
SCRIPT = """
import ctypes, sys
class Id(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_char * 128)]
comm, unique = ctypes.c_void_p(), Id()
for line in sys.stdin:
    word, _, value = line.strip().partition(" ")
    if word == "load":
        library = ctypes.CDLL(value, ctypes.RTLD_GLOBAL)
    elif word == "read":
        with open(value, "rb") as file:
            file.read()
    elif word == "init":
        library.ncclGetUniqueId(ctypes.byref(unique))
        library.ncclCommInitRank(ctypes.byref(comm), 1, unique, 0)
    elif word == "work":
        library.ncclAllReduce(None, None, ctypes.c_size_t(3), 7, 0, comm, None)
    print(word, flush=True)
"""


class Trainer:
    """A process that does one step of its start on command."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            ["/usr/bin/python3", "-I", "-c", SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def does(self, step: str) -> None:
        """Do it, and wait until it is done."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(step, file=self.process.stdin, flush=True)
        assert self.process.stdout.readline().strip() == step.split()[0]

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def trainer() -> Iterator[Callable[[], Trainer]]:
    """Starts processes; kills them in the end."""
    with contextlib.ExitStack() as stack:

        def start() -> Trainer:
            one = Trainer()
            stack.callback(one.close)
            return one

        yield start


def row_of(trainer: Trainer, rows: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """The row of table startup that tells of this process; empty where there is none."""
    return next((row for row in rows.get("startup", ()) if row["pid"] == trainer.process.pid), {})


@pytest.mark.bpf
def test_every_phase(watch: Any, caller: Any, trainer: Any, emulated: Libraries, tmp_path: Path) -> None:
    """Of a process that starts under the agent's eyes all phases are known, in their order, however fast it is."""
    checkpoint = tmp_path / "checkpoint"
    checkpoint.write_bytes(bytes(67_000_001))
    seen = watch(sources=SOURCES)
    caller(emulated.cudart, emulated.nccl)
    seen.wait_attached(emulated.nccl)
    before = time.time()
    one = trainer()
    one.does(f"load {emulated.cudart}")
    one.does(f"load {emulated.nccl}")
    attachments = seen.context.attachments
    pid = one.process.pid
    seen.until(lambda _: pid in {process.pid for process in attachments.mapped(("nccl",))["nccl"]})
    seen.read()
    one.does(f"read {checkpoint}")
    seen.read()
    one.does("init")
    one.does("work")
    row = seen.until(lambda rows: (found := row_of(one, rows)).get("first_operation_seconds") and found)
    assert {key["startup_phase"] for key in seen.rows["cuda"] if "startup_phase" in key} == {"running"}
    assert before - 1 < row["start_time_seconds"] < time.time()
    assert 0 < row["cuda_loaded_seconds"] <= row["nccl_loaded_seconds"] < row["communicator_begun_seconds"]
    assert row["communicator_begun_seconds"] <= row["communicator_made_seconds"] <= row["first_operation_seconds"]
    assert row["checkpoint_read_bytes"] >= 67_000_001
    assert 0 < row["checkpoint_read_seconds"] < row["first_operation_seconds"]
    (stored,) = [found for found in seen.rows["start"] if found["pid"] == row["pid"]]
    assert row.items() - {("start_time_seconds", row["start_time_seconds"])} <= stored.items()
    assert not row_of(one, seen.read())  # nothing new
    assert "start" not in seen.rows
    fast = trainer()
    for step in (f"load {emulated.cudart}", f"load {emulated.nccl}", "init", "work"):  # and no look between
        fast.does(step)
    row = seen.until(lambda rows: (found := row_of(fast, rows)).get("nccl_loaded_seconds") and found)
    assert row["nccl_loaded_seconds"] <= row["communicator_begun_seconds"] <= row["first_operation_seconds"]


@pytest.mark.bpf
def test_what_was_not_seen_is_null(watch: Any, caller: Any, trainer: Any, emulated: Libraries) -> None:
    """Nothing is guessed of a process older than the agent, nor of a communicator that was made unseen."""
    old = trainer()
    old.does(f"load {emulated.cudart}")
    old.does(f"load {emulated.nccl}")
    time.sleep(0.05)  # a few ticks of the clock that starts are counted in
    seen = watch(sources=SOURCES)
    seen.wait_attached(emulated.nccl)
    old.does("init")
    old.does("work")
    row = seen.until(lambda rows: row_of(old, rows))
    assert set(row) == {"gpu", "pid", "start_time_seconds"}
    assert [key["startup_phase"] for key in seen.rows["cuda"] if key["gpu"] == row["gpu"]] == ["running"]
    young = caller(emulated.cudart, emulated.nccl)
    young.call()
    row = seen.until(lambda rows: row_of(young, rows))
    assert not {"communicator_begun_seconds", "first_operation_seconds"} & set(row)
    assert row["start_time_seconds"] > 0


def test_reading_is_heavy_or_not() -> None:
    """Seconds and bytes count in which a megabyte a second was read, by whichever counter tells more."""
    one = Beginning()
    for at, read in (
        (1, (5_000_000, 0)),
        (3, (5_000_900, 8_000_000)),
        (4, (5_500_000, 8_100_000)),
        (6, (9_000_000, 8_100_007)),
    ):
        one.grow(at * SECOND, read)
    assert (one.read_ns, one.read_bytes) == (4 * SECOND, 11_500_000)
    assert one.reading
    one.grow(7 * SECOND, (9_000_009, 8_100_008))
    assert not one.reading


def test_io() -> None:
    """Bytes by system calls and from storage; another form is a ValueError."""
    assert parse_io(IO) == (7340033, 4096)
    with pytest.raises(ValueError, match="read_bytes"):
        parse_io(b"rchar: 5\n")


@given(st.binary(max_size=300))
def test_any_io(text: bytes) -> None:
    """Any other text is a ValueError and nothing else."""
    with contextlib.suppress(ValueError):
        assert len(parse_io(text)) == 2
