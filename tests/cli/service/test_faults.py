"""Agent and detector on a machine that is out of disk, descriptors or memory, or beside a server that answers half."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from cli.demo.emulated import why_not_started
from detector.alerts.dispatcher import AlertDispatcher
from detector.config import Config
from detector.service import runner
from emulator.cluster.machine import Machine, MachineSpec
from store.influx.config import InfluxConfig
from store.open import open_store
from store.schema.contract import StoreError
from store.schema.sample import Batch, Sample
from tests.cli.conftest import ROOT, one_line, process, run
from tests.detector.alerts.test_dispatcher import Ear
from tests.servers import influxd
from tests.wires import Wire

CONFIG = """
store = "{store}"
[influxdb]
spool_folder = "{folder}/spool"
[agent]
machine = "m19"
sources = [{sources}]
period_seconds = 0.2
limit_seconds = 0.15
"""


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A disk of two megabytes."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder], check=False)
    if mounted.returncode:
        pytest.skip("only root may mount a small disk")
    yield folder
    subprocess.run(["umount", folder], check=True)


def config(folder: Path, store: str, sources: str = '"host"') -> Path:
    """A configuration of an agent with this store."""
    file = folder / "p.toml"
    file.write_text(CONFIG.format(store=store, folder=folder, sources=sources))
    return file


@contextmanager
def agent(file: Path, log: Path, limit: Callable[[], None] = lambda: None) -> Iterator[subprocess.Popen[str]]:
    """An agent with this configuration, under a limit; its log goes to a file."""
    words = [sys.executable, "-m", "cli.main", "agent", "--config", str(file)]
    with log.open("w") as out:
        process = subprocess.Popen(
            words, env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=out, text=True, preexec_fn=limit
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def until(true: Callable[[], bool], log: Path, seconds: float = 60.0) -> None:
    """Wait for something."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)


def fill(disk: Path) -> Path:
    """Take all room of a small disk."""
    file = disk / "fill"
    with file.open("wb", buffering=0) as out:
        try:
            while True:
                out.write(bytes(4096))
        except OSError:
            return file


@pytest.mark.parametrize("server", [False, True], ids=["embedded", "spool"])
def test_a_full_disk(small: Path, tmp_path: Path, server: bool) -> None:
    """Programs name the full disk and end at the start; later readings wait, and none is dropped."""
    file = config(small, "http://127.0.0.1:9/x" if server else str(small / "s.db"))
    file = Path(shutil.move(file, tmp_path / "p.toml"))
    fill(small)
    assert "the disk is full" in one_line(process("agent", "--config", file), 1)
    if not server:
        assert "the disk is full" in one_line(process("detector", "--config", file), 1)
    for left in small.iterdir():
        if left.is_file():
            left.unlink()
    log = tmp_path / "log"
    with agent(file, log):
        until(
            lambda: (small / ("spool/spool.db" if server else "s.db")).exists() and "sources host" in log.read_text(),
            log,
        )
        time.sleep(1)
        filled = fill(small)
        until(lambda: "the disk is full" in log.read_text(), log)
        filled.unlink()
        until(lambda: "can be written again; 0 batches were dropped" in log.read_text(), log)
    assert "Traceback" not in log.read_text()


def test_a_demo_on_a_full_disk(small: Path) -> None:
    """A fleet that does not start for lack of room says so, instead of naming logs that are empty."""
    assert why_not_started(small, small / "fleet").endswith(f"see the logs in {small}/fleet")
    fill(small)
    assert why_not_started(small, small / "fleet").startswith(f"{small} has no room left")
    folder = small / "m00"
    folder.mkdir()
    (folder / "machine.log").touch()
    spec = MachineSpec("m00", folder, folder, folder, {}, None)
    assert str(Machine(spec)._failure()) == f"machine m00 failed: the disk of {folder} has no room left"


def test_a_read_only_configuration(small: Path, tmp_path: Path) -> None:
    """Agent and detector run with configuration and key on a file system that takes no writes."""
    file = config(small, str(tmp_path / "s.db"))
    subprocess.run(["mount", "-o", "remount,ro", small], check=True)
    log = tmp_path / "log"
    with agent(file, log):
        until(lambda: (tmp_path / "s.db").exists() and "sources host" in log.read_text(), log)
        assert run("config", "check", "--config", file).returncode == 0
    assert "ERROR" not in log.read_text()


def test_without_descriptors(tmp_path: Path) -> None:
    """An agent that may open eight files names that as the cause, of the store and of its sources, and goes on."""
    log = tmp_path / "log"
    file = config(tmp_path, str(tmp_path / "s.db"), '"host", "probe", "nccl"')
    with agent(file, log, lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (8, 8))) as process:
        until(lambda: "Too many open files" in log.read_text(), log)
        until(lambda: "no file descriptor is left" in log.read_text(), log)
        assert process.poll() is None
    assert process.returncode == 0
    assert "Traceback" not in log.read_text()


@pytest.mark.parametrize("megabytes", [150])
def test_without_memory(tmp_path: Path, megabytes: int) -> None:
    """An agent without memory says so and ends, for systemd to start it again; none goes on blind, none hangs."""
    log = tmp_path / "log"
    sources = ", ".join(f'"{name}"' for name in ("host", "probe", "nccl", "cuda", "stacks"))
    size = megabytes << 20
    with agent(
        config(tmp_path, str(tmp_path / "s.db"), sources),
        log,
        lambda: resource.setrlimit(resource.RLIMIT_AS, (size, size)),
    ) as process:
        try:
            assert process.wait(8) == 1
            assert "out of memory" in log.read_text()
        except subprocess.TimeoutExpired:  # it was enough for all that it did
            assert "MemoryError" not in log.read_text()
    assert process.returncode in (0, 1)


HOG = "import time\nheld = []\nwhile True: held.append(bytearray(b'x' * (8 << 20))); time.sleep(0.005)"


@pytest.fixture
def limited() -> Iterator[Callable[[], None]]:
    """Puts the process that calls it under a limit of 256 MB, as MemoryMax does, beyond which the kernel kills."""
    for root, limit in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        group = Path(root) / f"peerwatch-test-{os.getpid()}"
        try:
            group.mkdir()
            (group / limit).write_text(str(256 << 20))
        except OSError:
            if group.exists():
                group.rmdir()
            continue
        yield lambda group=group: (group / "cgroup.procs").write_text("0") and None  # type: ignore[misc]
        group.rmdir()
        return
    pytest.skip("no group of processes can be given a limit of memory here")


def test_killed_at_its_limit_of_memory(tmp_path: Path, limited: Callable[[], None]) -> None:
    """An agent that the kernel kills at the limit leaves a whole store, and the next one goes on behind it."""
    file, log = config(tmp_path, str(tmp_path / "s.db")), tmp_path / "log"

    def times() -> list[int]:
        with closing(open_store(str(tmp_path / "s.db"))) as store:
            found: list[int] = store.read("host").column("time").to_pylist()
            return found

    def first_to_go() -> None:
        limited()
        Path("/proc/self/oom_score_adj").write_text("1000")

    with agent(file, log, first_to_go) as victim:
        until(lambda: (tmp_path / "s.db").exists() and len(times()) > 5, log)
        with subprocess.Popen([sys.executable, "-c", HOG], preexec_fn=limited) as hog:
            assert victim.wait(60) == -signal.SIGKILL
            hog.kill()
    before = times()
    with agent(file, log):
        until(lambda: len(times()) > len(before) + 5, log)
    after = times()
    assert after[: len(before)] == before
    assert len(after) == len(set(after))
    assert "ERROR" not in log.read_text()


def test_half_an_answer_is_none(tmp_path: Path) -> None:
    """A server that breaks off in its answer is an error that names it, never an answer with fewer rows."""
    server = influxd(tmp_path)
    server.start()
    wire = Wire(server.port)
    direct = open_store(f"{server.url}/peerwatch", create=True)
    reading = [Sample("gpu", {"gpu": str(n), "sm_clock_hertz": 1.7e9 + n}) for n in range(7)]
    direct.write([Batch(f"m{n}", time.time_ns() + n, tuple(reading)) for n in range(31)])
    place = f"http://127.0.0.1:{wire.port}/peerwatch"
    with closing(open_store(place)) as store:
        whole = store.read("gpu").num_rows
        assert whole == 217  # 31 machines of 7 GPUs
        for break_off in (lambda: setattr(wire, "mode", "half"), wire.cut):
            break_off()
            with pytest.raises(StoreError, match=f"127.0.0.1:{wire.port}/peerwatch"):
                store.read("gpu")
            with pytest.raises(StoreError):
                store.write([Batch("m1", time.time_ns(), (reading[0],))])
            wire.mode = "through"
            assert store.read("gpu").num_rows == whole
    direct.close()
    wire.close()
    server.kill()


def test_a_store_that_takes_half_a_minute(tmp_path: Path) -> None:
    """The detector says that it is blind while answers take too long; later it reports once what it missed."""
    server = influxd(tmp_path)
    server.start()
    wire, ear, stop = Wire(server.port), Ear(), threading.Event()
    direct = open_store(f"{server.url}/peerwatch", create=True)
    dispatcher = AlertDispatcher({"ear": ear}, tmp_path / "alerts", blind_s=6.0)
    fed = threading.Event()

    def feed() -> None:
        while not fed.wait(0.5):
            now = time.time_ns()
            clock = Sample("gpu", {"gpu": "0", "sm_clock_hertz": 1.7e9})
            direct.write([Batch(f"m{n}", now, (clock,)) for n in range(9)])

    feeder = threading.Thread(target=feed)
    feeder.start()
    time.sleep(2)
    # A thirtieth of the times: answers after 2 s where 0.5 s are waited for.
    slow = InfluxConfig(timeout_seconds=1.0)
    place = open_store(f"http://127.0.0.1:{wire.port}/peerwatch", config=slow)
    thread = threading.Thread(target=runner.run, args=(place, Config(judging_delay_seconds=0.5), dispatcher, stop))
    thread.start()
    time.sleep(4)
    wire.slow_s = 3.0
    time.sleep(9)
    event = {"source": "kernel_log", "code": "79", "severity": "crit", "message": "Xid 79", "device": "gpu:0"}
    direct.write([Batch("m4", time.time_ns(), (Sample("event", dict(event)),))])
    wire.slow_s = 0.0
    sent = ear.wait(3)
    stop.set()
    thread.join()
    fed.set()
    feeder.join()
    dispatcher.close()
    place.close()
    direct.close()
    wire.close()
    server.kill()
    kinds = {(event, machine) for event, machine, _ in sent}
    assert kinds == {("begun", "peerwatch"), ("over", "peerwatch"), ("begun", "m4")}
