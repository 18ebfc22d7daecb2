"""What every source must do, whoever wrote it."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from agent import sources
from agent.config import SOURCES, AgentConfig
from agent.context import Context, SourceUnavailableError
from emulator.libraries.build import Libraries
from store.schema.catalogue import METRICS, TABLES
from store.schema.sample import Sample

PROBED = ("probe", "nccl", "cuda", "scheduler")


def check(samples: list[Sample]) -> None:
    """Rows are of known tables, with all keys as text and known columns, and can be written down."""
    for sample in samples:
        table = TABLES[sample.table]
        for key in table.keys:
            assert isinstance(sample.values[key], str)
        for column in sample.values:
            assert column in table.keys or f"{sample.table}.{column}" in METRICS, f"{sample.table}.{column}"
        json.dumps(dict(sample.values), allow_nan=False)


def test_every_file_is_listed() -> None:
    """The list of sources is the list of files: nothing is forgotten, nothing is without a file."""
    (folder,) = sources.__path__
    assert {path.stem for path in Path(folder).glob("[a-z]*.py")} == set(SOURCES)


@pytest.mark.parametrize("name", PROBED)
def test_without_probes_a_source_says_so(name: str) -> None:
    """A source that cannot be had gives the reason that was found at the start."""
    module = importlib.import_module(f"agent.sources.{name}")
    with pytest.raises(SourceUnavailableError, match="no rights today"):
        module.open_source(Context(AgentConfig(), no_probes="no rights today"))


def test_host_keeps_the_contract() -> None:
    """The host source needs nothing but the machine."""
    source = importlib.import_module("agent.sources.host").open_source(Context(AgentConfig()))
    for now in (10**18, 10**18 + 10**9):
        check(list(source.read(now)))
    source.close()
    source.close()


@pytest.mark.bpf
def test_probed_sources_keep_the_contract(watch: Any, caller: Any, emulated: Libraries) -> None:
    """With a process at work every source gives rows that keep the contract, and the same keys twice."""
    seen, process = watch(), caller(emulated.cudart, emulated.nccl, mix="ncclAllReduce=2,cudaStreamSynchronize=1")
    seen.wait_attached(emulated.nccl)
    process.call()
    for worker in seen.reader.workers:
        check(list(worker.source.read(time.time_ns())))
    rows = seen.until(lambda rows: all(rows.get(table) for table in ("nccl", "cuda", "host")) and rows)
    assert {row["source"] for row in rows["source"]} == {*(worker.name for worker in seen.reader.workers), "kernel"}


@pytest.mark.bpf
def test_a_source_that_fails_leaves_the_others_alone(watch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever source raises an error, its row has the message, and every other source is read as before."""
    seen = watch()
    names = {worker.name for worker in seen.reader.workers}

    def success() -> dict[str, float]:
        return {row["source"]: row["success"] for row in seen.read()["source"] if row["source"] in names}

    healthy = success()
    assert healthy.keys() == names

    def fail(now: int) -> list[Sample]:
        raise OSError("the disk is gone")

    for worker in seen.reader.workers:
        with monkeypatch.context() as patch:
            patch.setattr(worker.source, "read", fail)
            assert success() == healthy | {worker.name: 0.0}
            assert "the disk is gone" in next(
                row["error"] for row in seen.rows["source"] if row["source"] == worker.name
            )


@pytest.mark.bpf
def test_closing_twice_is_harmless(watch: Any) -> None:
    """Every source may be closed again after it was closed."""
    seen = watch()
    seen.read()
    for worker in seen.reader.workers:
        worker.source.close()
        worker.source.close()


@pytest.mark.bpf
def test_a_process_that_leaves_communicators_behind(watch: Any, caller: Any, emulated: Libraries) -> None:
    """Its end is an event with the device, and its rows stop."""
    seen, process = watch(), caller(emulated.cudart, emulated.nccl)
    seen.wait_attached(emulated.nccl)
    process.call()
    seen.until(lambda rows: any(row["pid"] == process.pid for row in rows.get("nccl", ())))
    process.close()
    (event,) = seen.until(lambda rows: [row for row in rows.get("event", ()) if str(process.pid) in row["message"]])
    assert (event["code"], event["severity"]) == ("rank_exit", "crit")
    assert event["device"].startswith("gpu:")
    assert not any(row["pid"] == process.pid for row in seen.read().get("nccl", ()))


@pytest.mark.bpf
def test_a_process_that_leaves_its_communicators(watch: Any, caller: Any, emulated: Libraries) -> None:
    """A process that destroyed its communicators ends without an event."""
    seen, process = watch(), caller(emulated.cudart, emulated.nccl, calls=6, mix="ncclAllReduce=5,ncclCommDestroy=1")
    seen.wait_attached(emulated.nccl)
    process.call()
    for _ in range(3):
        assert not seen.read().get("event")
    process.close()
    for _ in range(3):
        assert not any(str(process.pid) in row["message"] for row in seen.read().get("event", ()))


def memories() -> int:
    """How many processes' memory this process holds open."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the listing's own descriptor is gone by now
            count += os.readlink(f"/proc/self/fd/{name}").endswith("/mem")
    return count


@pytest.mark.bpf
def test_an_ended_process_is_let_go(watch: Any, caller: Any, emulated: Libraries) -> None:
    """Nothing is held of a process that left its communicators in order and ended."""
    seen = watch()
    for _ in range(3):
        process = caller(emulated.cudart, emulated.nccl, calls=6, mix="ncclAllReduce=5,ncclCommDestroy=1")
        seen.wait_attached(emulated.nccl)
        process.call()
        seen.read()
        process.close()
    seen.until(lambda _: memories() == 0)


@pytest.mark.bpf
def test_a_process_that_runs_another_program(watch: Any, emulated: Libraries) -> None:
    """After an exec the communicators are gone, as if the process had ended; it keeps no place in any table."""
    script = (
        f"import ctypes, os, sys\nctypes.CDLL({str(emulated.cudart)!r}, ctypes.RTLD_GLOBAL)\n"
        f"lib = ctypes.CDLL({str(emulated.nccl)!r})\nsys.stdin.readline()\n"
        "lib.ncclAllReduce(None, None, ctypes.c_size_t(1), 7, 0, None, None)\nsys.stdin.readline()\n"
        "os.execv('/bin/sleep', ['sleep', '60'])"
    )
    seen = watch()
    with subprocess.Popen(["/usr/bin/python3", "-I", "-c", script], stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        seen.wait_attached(emulated.nccl)
        process.stdin.write(b"\n")
        process.stdin.flush()
        seen.until(lambda rows: any(row["pid"] == process.pid for row in rows.get("nccl", ())))
        process.stdin.write(b"\n")
        process.stdin.flush()
        (event,) = seen.until(lambda rows: [r for r in rows.get("event", ()) if str(process.pid) in r["message"]])
        assert event["code"] == "rank_exit"
        rows = seen.read()
        assert not any(row["pid"] == process.pid for table in ("nccl", "cuda") for row in rows.get(table, ()))
        process.kill()


@pytest.mark.bpf
def test_nccl_without_cuda(watch: Any, caller: Any, emulated: Libraries) -> None:
    """The nccl source counts on its own."""
    seen, process = watch(sources=("probe", "nccl")), caller(emulated.cudart, emulated.nccl, calls=43)
    seen.wait_attached(emulated.nccl)
    process.call()
    (row,) = seen.until(lambda rows: [r for r in rows.get("nccl", ()) if r["pid"] == process.pid and r["counted_from"]])
    assert row["operations_total"] == 43
