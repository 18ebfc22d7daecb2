"""One period for all sources; what one of them does leaves the rest alone."""

from __future__ import annotations

import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent.config import AgentConfig
from agent.context import Context
from agent.sampling import loop
from agent.sampling.reader import Reader, Worker
from agent.system.file_identity import MOST
from store.schema.sample import Batch, Sample
from store.sqlite.embedded import Embedded


class Steady:
    """A source that always works."""

    closed = False

    def read(self, now: int) -> list[Sample]:
        """One row that tells the time."""
        return [Sample("host", {"processes_running": float(now % 97)})]

    def close(self) -> None:
        """Remember it."""
        self.closed = True


class Broken(Steady):
    """A source that never works."""

    def read(self, now: int) -> list[Sample]:
        """Fail."""
        raise RuntimeError("the driver said no")


class Stuck(Steady):
    """A source that hangs until it is let go."""

    def __init__(self) -> None:
        self.free = threading.Event()
        self.readings = 0

    def read(self, now: int) -> list[Sample]:
        """Wait."""
        self.readings += 1
        self.free.wait()
        return super().read(now)


def opened(**sources: Any) -> Reader:
    """A reader of these sources."""
    return Reader(Worker(name, source) for name, source in sources.items())


def fared(batch: Batch) -> dict[Any, Any]:
    """How each source fared."""
    return {row.values["source"]: row.values for row in batch.samples if row.table == "source"}


def test_a_failing_source_is_counted_and_named() -> None:
    """Its error, count and duration are metrics, and the other source's row is there."""
    running = opened(steady=Steady(), broken=Broken())
    loop.read_once(running, 1, "m3", 5.0)
    batch = loop.read_once(running, 207, "m3", 5.0)
    assert (batch.machine, batch.time) == ("m3", 207)
    assert fared(batch)["broken"]["success"] == 0.0
    assert fared(batch)["broken"]["failures_total"] == 2
    assert fared(batch)["broken"]["error"] == "RuntimeError: the driver said no"
    assert fared(batch)["steady"]["success"] == 1.0
    assert [row.values for row in batch.samples if row.table == "host"] == [{"processes_running": 13.0}]
    loop.close(running, Context(AgentConfig()))


def test_a_hanging_source_costs_the_others_nothing() -> None:
    """It is waited for until the limit, not started again, and comes back when it can; so with two of them."""
    stuck, other, steady = Stuck(), Stuck(), Steady()
    running = opened(stuck=stuck, other=other, steady=steady)
    for now in (1, 2, 3):
        batch = loop.read_once(running, now, "m3", 2.5)
        assert fared(batch)["steady"]["success"] == 1.0
        for name in ("stuck", "other"):
            assert "still reading" in fared(batch)[name]["error"]
    assert stuck.readings == other.readings == 1
    stuck.free.set()
    other.free.set()
    batch = loop.read_once(running, 4, "m3", 5.0)
    for name in ("stuck", "other"):
        assert fared(batch)[name]["success"] == 1.0
        assert fared(batch)[name]["failures_total"] == 3
    loop.close(running, Context(AgentConfig()))
    assert steady.closed


def test_a_source_that_was_slow_is_not_left_behind_one_that_hangs() -> None:
    """A thread that another one took over from reads no other source, which might keep it for ever."""
    relieved, over, again, stuck = threading.Event(), threading.Event(), threading.Event(), Stuck()

    class Once(Steady):
        def read(self, now: int) -> list[Sample]:
            if now == 1:
                relieved.wait()
            else:
                again.set()
            return super().read(now)

    class Second(Steady):
        def read(self, now: int) -> list[Sample]:
            relieved.set()
            if now == 1:
                over.wait(0.5)
            return super().read(now)

    running = opened(slow=Once(), second=Second(), stuck=stuck, last=Steady())
    for now in (1, 2, 3):
        loop.read_once(running, now, "m3", 0.8)
    assert again.wait(20.0)
    stuck.free.set()
    loop.close(running, Context(AgentConfig()))


def test_a_thread_that_read_a_source_lives_on() -> None:
    """Children that die with the thread that started them outlive a reading that was slow, time and again."""
    threads: list[threading.Thread] = []

    class Moody(Steady):
        def read(self, now: int) -> list[Sample]:
            threads.append(threading.current_thread())
            time.sleep(0.3 if now % 2 else 0.0)
            return super().read(now)

    running = opened(moody=Moody(), steady=Steady())
    for now in range(1, 8):
        assert fared(loop.read_once(running, now, "m3", 0.8))["steady"]["success"] == 1.0
    assert all(thread.is_alive() for thread in threads)
    assert len(set(threads)) <= 3  # one a source, and the one that they share
    loop.close(running, Context(AgentConfig()))


class Slow(Steady):
    """A source with a call that times out."""

    def read(self, now: int) -> list[Sample]:
        """Fail as a socket or a driver does."""
        raise TimeoutError(110, "Connection timed out")


def test_a_time_out_of_the_sources_own_is_a_failure_like_others() -> None:
    """It is read again the next period."""
    running = opened(slow=Slow())
    for now in (1, 2, 3):
        batch = loop.read_once(running, now, "m3", 5.0)
    assert fared(batch)["slow"]["failures_total"] == 3
    assert "Connection timed out" in fared(batch)["slow"]["error"]
    loop.close(running, Context(AgentConfig()))


class Shut:
    """A store that can be shut."""

    def __init__(self) -> None:
        self.shut = False
        self.batches: list[Batch] = []

    def write(self, batches: Iterable[Batch]) -> None:
        """Keep, or refuse all."""
        if self.shut:
            raise OSError("no space left on device")
        self.batches += batches


def test_a_shut_store_loses_nothing_within_bounds() -> None:
    """Batches wait in order while the store is shut; beyond the bound the oldest are dropped and counted."""
    store = Shut()
    outbox = loop.Outbox(store)
    outbox.send(Batch("m3", 0, ()))
    store.shut = True
    for now in range(1, loop.BACKLOG + 6):
        outbox.send(Batch("m3", now, ()))
    assert outbox.dropped == 5
    store.shut = False
    outbox.send(Batch("m3", 9999, ()))
    assert [batch.time for batch in store.batches] == [0, *range(7, loop.BACKLOG + 6), 9999]
    assert outbox.dropped == 6


def test_run_ends_at_its_event() -> None:
    """The loop reads once a period, and stops within one."""
    store, stop = Shut(), threading.Event()
    config = AgentConfig(machine="m3", sources=("host",), period_seconds=0.05)
    thread = threading.Thread(target=loop.run, args=(config, store, stop))
    thread.start()
    limit = time.monotonic() + 10
    while len(store.batches) < 4 and time.monotonic() < limit:
        time.sleep(0.01)
    stop.set()
    thread.join(10)
    assert not thread.is_alive()
    times = [batch.time for batch in store.batches]
    assert times == sorted(set(times))
    assert {batch.machine for batch in store.batches} == {"m3"}


def test_a_signal_at_any_moment_ends_it() -> None:
    """Also one that comes while the event that is waited for is locked by the very thread that handles it."""
    code = (
        "import os, signal, threading\nfrom agent.system.shutdown import end_by_signals\n"
        "stop = threading.Event()\nend_by_signals(stop)\n"
        "with stop._cond:\n    os.kill(os.getpid(), signal.SIGTERM)\n"
        "assert stop.wait(30.0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_many_files_can_be_open() -> None:
    """An agent that was started with a small limit of open files raises it: probes on many libraries need one each."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    stop = threading.Event()
    stop.set()
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
        loop.run(AgentConfig(machine="m3", sources=("host",)), Shut(), stop)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == (hard if 0 <= hard < MOST else MOST)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"sources": ("host", "gpuu")}, "'gpuu'"),
        ({"cuda_calls": ("mallocs",)}, "'mallocs'"),
        ({"period_seconds": 0.0}, "period_seconds"),
        ({"keep_bytes": 5}, "keep_bytes"),
        ({"sources": ("host", "nccl")}, "needs probe"),
        ({"progress_hertz": 1e9}, "progress_hertz"),
    ],
)
def test_settings_that_cannot_be_meant(settings: dict[str, Any], named: str) -> None:
    """A wrong value is refused with the name of its key and what is allowed."""
    with pytest.raises(ValueError, match=named):
        msgspec.convert(settings, AgentConfig)


class Rows(Steady):
    """A source that gives the samples it was made with."""

    def __init__(self, *samples: Sample) -> None:
        self.samples = samples

    def read(self, now: int) -> list[Sample]:
        """Those samples."""
        return list(self.samples)


def test_two_sources_tell_of_one_device_in_one_row() -> None:
    """Columns of equal keys are joined; other devices and events of one code stay apart."""
    events = [Sample("event", {"source": "a", "code": "b", "message": text}) for text in ("first", "second")]
    calls = Rows(Sample("cuda", {"gpu": "0", "pid": 31}), Sample("cuda", {"gpu": "1", "pid": 47}), *events)
    pauses = Rows(Sample("cuda", {"gpu": "1", "gc_pauses_total": 5}))
    running = opened(calls=calls, pauses=pauses)
    samples = loop.read_once(running, 19, "m3", 5.0).samples
    values = [dict(row.values) for row in samples if row.table == "cuda"]
    assert values == [{"gpu": "0", "pid": 31}, {"gpu": "1", "pid": 47, "gc_pauses_total": 5}]
    assert [row for row in samples if row.table == "event"] == events
    loop.close(running, Context(AgentConfig()))


def test_a_source_that_cannot_be_opened_is_tried_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its rows say why it gives nothing; once it is to be had, it is read."""
    config = AgentConfig(sources=("host", "kernel_log"), root=str(tmp_path))
    reader = loop.open_reader(Context(config))
    for count in (1, 2):
        row = fared(loop.read_once(reader, count, "m3", 5.0))["kernel_log"]
        assert (row["success"], row["failures_total"]) == (0.0, count)
        assert row["error"].startswith(f"there is no {tmp_path}/dev/kmsg: in a container, mount")
    monkeypatch.setattr(loop, "OPEN_PERIOD_S", 0.0)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/kmsg").touch()
    rows = fared(loop.read_once(reader, 3, "m3", 5.0))
    assert {name: row["success"] for name, row in rows.items()} == {"host": 1.0, "kernel_log": 1.0}
    loop.close(reader, Context(config))


def test_rows_that_no_store_can_hold_stop_no_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A name that no column can have costs its table in its batch; all else is written, and it is said once."""
    with closing(Embedded(tmp_path / "s.db")) as store:
        outbox = loop.Outbox(store)
        for now in (11, 12, 13):
            bad = Sample("gpu", {"gpu": "0", "power watts" if now < 13 else "power_watts": 7.5})
            outbox.send(Batch("m3", now, (Sample("host", {"cpu_utilization_ratio": 0.5}), bad)))
        assert store.read("host").column("time").to_pylist() == [11, 12, 13]
        assert store.read("gpu").column("time").to_pylist() == [13]
    assert (outbox.dropped, outbox.shut, len(outbox.waiting)) == (2, False, 0)
    assert sum("rows of table gpu are left out: 'power watts'" in line for line in caplog.messages) == 1
