"""What training processes wait for is counted in the kernel, theirs alone, and as the kernel itself counts it."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import itertools
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.context import SourceUnavailableError
from agent.probes import switch_limit
from agent.sources.scheduler import Scheduler, disk_ns
from bpf.tracepoint import PREFIX
from emulator.libraries.build import Libraries
from tests.agent.conftest import Watch

SOURCES = ("probe", "nccl", "cuda", "scheduler")
SCRIPT = """
import ctypes, json, os, sys, time
for path in sys.argv[1:]:
    library = ctypes.CDLL(path, ctypes.RTLD_GLOBAL)
library.ncclAllReduce(None, None, ctypes.c_size_t(1), 7, 0, None, None)
print("trains", flush=True)
for line in sys.stdin:
    said = None
    exec(json.loads(line))
    print(said, flush=True)
"""
SPIN = "while True: pass"
GPUS = itertools.count(os.getpid() % 400 + 100)
"""Unlike those of other processes that train here."""


class Trainer:
    """A process that has called NCCL and runs Python statements; it prints what they assign to `said`."""

    def __init__(self, libraries: Libraries, gpu: int, prefix: Sequence[str] = ()) -> None:
        command = [*prefix, "/usr/bin/python3", "-I", "-c", SCRIPT, str(libraries.cudart), str(libraries.nccl)]
        self.gpu = str(gpu)
        environment = {**os.environ, "LOCAL_RANK": self.gpu, "CUDA_VISIBLE_DEVICES": ""}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.pid = self.process.pid

    def begin(self, code: str) -> None:
        """Start to do something."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(code) + "\n")
        self.process.stdin.flush()

    def end(self) -> str:
        """The next line that it says."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def do(self, code: str) -> str:
        """Do something and wait for it."""
        self.begin(code)
        return self.end()

    def rest(self) -> float:
        """Wait until it sleeps; seconds it waited for a CPU, by the kernel's own account (proc(5), schedstat)."""
        before = ""
        while before != (now := Path(f"/proc/{self.pid}/status").read_text()) or "State:\tS" not in now:
            before = now
            time.sleep(0.01)
        return int(Path(f"/proc/{self.pid}/schedstat").read_text().split()[1]) / 1e9

    def helpers_waited(self) -> float:
        """Seconds that its other threads waited for a CPU."""
        waits = [path.read_text().split()[1] for path in Path(f"/proc/{self.pid}/task").glob("*/schedstat")]
        return sum(map(int, waits)) / 1e9 - self.rest()

    def row(self, rows: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
        """Its row of the table of processes; empty while it has none."""
        return next((row for row in rows.get("process", ()) if row["gpu"] == self.gpu), {})

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.communicate()


@pytest.fixture(scope="module")
def seen(probes_allowed: None, emulated: Libraries) -> Iterator[Watch]:
    """One agent for all of these tests; a process keeps its probes on the libraries."""
    opened, keeper = Watch(sources=SOURCES), Trainer(emulated, 99)
    opened.wait_attached(emulated.nccl)
    yield opened
    keeper.close()
    opened.close()


@pytest.fixture
def trainer(seen: Watch, emulated: Libraries) -> Iterator[Callable[..., Trainer]]:
    """Starts training processes that are watched already, each on a GPU of its own; kills them in the end."""
    started: list[Trainer] = []

    def start(*prefix: str) -> Trainer:
        one = Trainer(emulated, next(GPUS), prefix)
        started.append(one)
        assert one.end() == "trains"
        seen.until(one.row)
        one.do("")  # what a thread waited before its first switch under watch is not known
        one.rest()
        return one

    yield start
    for one in started:
        one.close()


@pytest.fixture
def rival() -> Iterator[Callable[[], None]]:
    """Starts a process that trains nothing and never lets go of the first CPU that we may use."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        cpu = min(os.sched_getaffinity(0))
        script = f"import os; os.sched_setaffinity(0, {{{cpu}}})\n{SPIN}"
        started.append(subprocess.Popen([sys.executable, "-I", "-c", script]))

    yield start
    for one in started:
        one.kill()
        one.wait()


def on_first_cpu(code: str) -> str:
    """The code, done on the first CPU that we may use."""
    return f"import os; os.sched_setaffinity(0, {{{min(os.sched_getaffinity(0))}}})\n{code}"


@pytest.mark.bpf
def test_waiting_for_a_cpu(seen: Watch, trainer: Callable[..., Trainer], rival: Callable[[], None]) -> None:
    """What a thread waits while another one has its CPU is counted exactly as the kernel counts it."""
    one = trainer()
    one.do(on_first_cpu(""))
    own, before = one.rest(), one.row(seen.read())["cpu_wait_seconds_total"]
    rival()
    while one.rest() - own < 0.05:
        one.do("sum(range(1_000_000))")
    waited = one.rest() - own
    assert one.row(seen.read())["cpu_wait_seconds_total"] - before == pytest.approx(waited, abs=1e-8)


@pytest.mark.bpf
def test_waits_of_data_loaders_count(seen: Watch, trainer: Callable[..., Trainer], rival: Callable[[], None]) -> None:
    """What a process waits that the training process has started is its GPU's wait, too."""
    one = trainer()
    if not Path(f"/proc/{one.pid}/task/{one.pid}/children").exists():
        pytest.skip("this kernel does not list children (CONFIG_PROC_CHILDREN)")
    (scheduler,) = [worker.source for worker in seen.reader.workers if worker.name == "scheduler"]
    rival()
    start = f"import subprocess; said = subprocess.Popen(['/usr/bin/python3', '-I', '-c', {on_first_cpu(SPIN)!r}]).pid"
    child = int(one.do(start))
    own, before = one.rest(), one.row(seen.read())["cpu_wait_seconds_total"]
    later = itertools.count(time.time_ns() + 10**12, 10**10)  # it looks for children every few seconds

    def waited(_: Any) -> bool:
        rows = {"process": [dict(one.values) for one in scheduler.read(next(later)) if one.table == "process"]}
        return bool(one.row(rows)["cpu_wait_seconds_total"] - before > 0.05)

    seen.until(waited)
    assert one.rest() - own < 0.05
    os.kill(child, 9)


@pytest.mark.bpf
def test_waiting_for_a_disk(seen: Watch, trainer: Callable[..., Trainer], tmp_path: Path) -> None:
    """Writes that go to the disk itself are waited for, and not longer than they took; sleep is no such wait."""
    path = tmp_path / "checkpoint"
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT))
    except OSError as error:
        pytest.skip(f"no direct writes where temporary files are: {error}")
    one = trainer()
    one.do(f"import mmap; page, file = mmap.mmap(-1, 1 << 20), os.open({str(path)!r}, os.O_RDWR | {os.O_DIRECT})")
    before, begin = one.row(seen.read())["disk_wait_seconds_total"], time.monotonic()

    def waited(rows: dict[str, Any]) -> float:
        one.do("os.pwrite(file, page, 0); os.fsync(file)")
        return float(one.row(rows)["disk_wait_seconds_total"] - before)

    assert seen.until(waited) <= time.monotonic() - begin
    one.rest()
    before = one.row(seen.read())["disk_wait_seconds_total"]
    one.do("time.sleep(0.2)")
    assert one.row(seen.read())["disk_wait_seconds_total"] == before


def total_retransmits(text: str) -> int:
    """tcpi_total_retrans of a TCP_INFO in hexadecimal (include/uapi/linux/tcp.h)."""
    return int.from_bytes(bytes.fromhex(text)[100:104], "little")


LOSE = (
    "ip link add pw0 type veth peer name pw1 && ip link set pw0 arp off up && ip link set pw1 arp off up && "
    "ip address add 198.51.100.1/24 dev pw0"
)


@pytest.mark.bpf
def test_segments_sent_again(seen: Watch, trainer: Callable[..., Trainer]) -> None:
    """A connection that gets no answer is asked for again, and counted as the socket itself counts it."""
    apart = ("unshare", "--net", "sh", "-c", f'{LOSE} && exec "$@"', "sh")
    made = subprocess.run([*apart, "true"], stderr=subprocess.PIPE, text=True, check=False)
    if made.returncode:
        pytest.skip(f"no network that loses everything can be made here: {made.stderr.strip()}")
    one = trainer(*apart)
    one.do("import socket; lost = socket.socket(); lost.setblocking(False)")
    assert one.do("said = lost.connect_ex(('198.51.100.2', 4791))") == str(errno.EINPROGRESS)
    again = seen.until(lambda rows: one.row(rows)["tcp_retransmit_segments_total"])
    values = one.do(f"said = lost.getsockopt({socket.IPPROTO_TCP}, {socket.TCP_INFO}, 256).hex()")
    assert 1 <= again <= total_retransmits(values)


def memory_group() -> tuple[Path, str] | None:
    """A fresh group with memory that can be limited, and the file that limits it; None where none can be made."""
    for root, limit in (
        (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
        (Path("/sys/fs/cgroup"), "memory.max"),
    ):
        group = root / f"peerwatch-{os.getpid()}"
        with contextlib.suppress(OSError):
            group.mkdir()
            if (group / limit).exists():
                return group, limit
            group.rmdir()
    return None


@pytest.mark.bpf
def test_out_of_memory(seen: Watch, trainer: Callable[..., Trainer]) -> None:
    """A training process that is killed for want of memory is an event of its GPU."""
    made = memory_group()
    if made is None:
        pytest.skip("no control group that limits memory can be made here")
    group, limit = made
    one = trainer()
    try:
        (group / "cgroup.procs").write_text(str(one.pid))
        for swap in ("memory.swap.max", "memory.swappiness"):
            if (group / swap).exists():
                (group / swap).write_text("0")
        (group / limit).write_text(str(64 << 20))
        one.begin("bytearray(256 << 20)")

        def killed(rows: dict[str, Any]) -> Any:
            return [row for row in rows.get("event", ()) if row["source"] == "scheduler"]

        (event,) = seen.until(killed)
        assert one.process.wait() == -9
    finally:
        one.close()
        group.rmdir()
    assert (event["code"], event["severity"], event["device"]) == ("oom_kill", "crit", f"gpu:{one.gpu}")
    assert str(one.pid) in event["message"]


PINGS = """
import threading
go, back = os.pipe(), os.pipe()
def answer():
    while os.read(go[0], 1) == b"1":
        os.write(back[1], b"1")
threading.Thread(target=answer, daemon=True).start()
for _ in range(700):
    os.write(go[1], b"1"), os.read(back[0], 1)
"""


@pytest.mark.bpf
def test_switches_that_take_too_much_go_uncounted(
    seen: Watch, trainer: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that switches too often rests, and its wait meanwhile is counted afterwards; others are counted on."""
    governor, one, other = seen.context.governor, trainer(), trainer()
    assert governor is not None
    own, before = one.rest(), one.row(seen.read())["cpu_wait_seconds_total"]
    monkeypatch.setattr(switch_limit, "CHECK_S", 0.4)
    monkeypatch.setattr(switch_limit, "REST_S", 2.5)
    monkeypatch.setattr(governor, "share", 0.0004)

    def state(rows: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
        return next((row for row in rows.get("probe", ()) if row["path"] == "sched:sched_switch"), {})

    def tired(rows: dict[str, list[dict[str, Any]]]) -> bool:
        one.do(PINGS)
        return "are suspended" in (state(rows).get("reason") or "")

    seen.until(tired)
    said = state(seen.rows)
    assert f"GPU {one.gpu}: probes on its switches of threads are suspended: they take " in said["reason"]
    assert (said["state"], said["suspended"]) == ("on", 1)
    assert 1.5e-7 < said["hit_seconds"] < 1e-3  # seconds; how many of them is for the bench to tell
    assert "cpu_wait_seconds_total" not in one.row(seen.rows)
    assert "cpu_wait_seconds_total" in other.row(seen.rows)
    monkeypatch.setattr(governor, "share", 0.9)
    states: list[dict[str, Any]] = []  # a state is written when it changes

    def again(rows: dict[str, list[dict[str, Any]]]) -> bool:
        states.append(state(rows))
        return "cpu_wait_seconds_total" in one.row(rows) and any(now.get("reason", "") is None for now in states)

    seen.until(again)
    one.do("")
    waited, counted = one.rest() - own, one.row(seen.read())["cpu_wait_seconds_total"] - before
    assert waited - 1e-8 < counted < waited + one.helpers_waited() + 1e-8


def scheduler_of(seen: Watch, kernel: Any) -> Scheduler:
    """The source on this kernel side."""
    assert seen.context.governor is not None
    return Scheduler(kernel, seen.context.training, seen.context.governor, Path("/proc"))


@pytest.mark.bpf
def test_one_tracepoint_less(seen: Watch, trainer: Callable[..., Trainer]) -> None:
    """A tracepoint that cannot be had is reported with its reason, and the others count."""
    kernel = seen.context.kernel
    assert kernel is not None
    lost = PREFIX + "tcp_retransmit_skb"
    programs = {name: program for name, program in kernel.programs.items() if name != lost}
    rings = {name: ring for name, ring in kernel.rings.items() if name != "retransmits"}
    poorer = dataclasses.replace(kernel, programs=programs, rings=rings, refused={lost: "not today"})
    one = trainer()
    source = scheduler_of(seen, poorer)
    rows: dict[str, list[dict[str, Any]]] = {}
    for sample in source.read(time.time_ns()):
        rows.setdefault(sample.table, []).append(dict(sample.values))
    source.close()
    states = {row["path"]: (row["state"], row["reason"]) for row in rows["probe"]}
    assert states["tcp:tcp_retransmit_skb"] == ("blocked", "not today")
    assert states["sched:sched_switch"] == states["oom:mark_victim"] == ("on", None)
    assert one.row(rows).keys() == {"gpu", "cpu_wait_seconds_total", "disk_wait_seconds_total"}


@pytest.mark.bpf
def test_no_tracepoint_at_all(seen: Watch) -> None:
    """Where no tracepoint can be had the source says why."""
    kernel = seen.context.kernel
    assert kernel is not None
    bare = dataclasses.replace(kernel, programs={}, refused={}, layout={}, unknown="this kernel tells nothing")
    with pytest.raises(SourceUnavailableError, match="mark_victim: this kernel tells nothing"):
        scheduler_of(seen, bare)
    older = dataclasses.replace(kernel, programs={}, refused={}, layout={"TYPE_mark_victim": 3})
    reasons = r"sched_switch: this kernel has no such.*mark_victim: .*other fields"
    with pytest.raises(SourceUnavailableError, match=reasons):
        scheduler_of(seen, older)


NESTED = """
import json, os, sys, time
from pathlib import Path
from emulator.libraries.build import Libraries
from tests.agent.conftest import Watch
from tests.agent.sources.test_scheduler import SOURCES, Trainer
libraries = Libraries(*map(Path, json.loads(sys.argv[1])))
seen = Watch(sources=SOURCES)
keeper = Trainer(libraries, 43)
seen.wait_attached(libraries.nccl)
one = Trainer(libraries, 44)
seen.until(one.row)
one.do("")  # what a thread waited before its first switch under watch is not known
own, before = one.rest(), one.row(seen.read())["cpu_wait_seconds_total"]
while one.rest() == own:
    one.do("")
waited = one.rest() - own
counted = one.row(seen.read())["cpu_wait_seconds_total"] - before
print(json.dumps([[row["gpu"] for row in seen.rows["process"]], one.pid, waited, counted]))
one.close()
keeper.close()
seen.close()
"""


@pytest.mark.bpf
def test_a_namespace_of_processes(seen: Watch, trainer: Callable[..., Trainer], emulated: Libraries) -> None:
    """An agent in a PID namespace counts the processes there, by their numbers there, and none outside."""
    trainer()
    apart = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    made = subprocess.run([*apart, "true"], stderr=subprocess.PIPE, text=True, check=False)
    if made.returncode:
        pytest.skip(f"no namespace of processes can be made here: {made.stderr.strip()}")
    paths = json.dumps([str(getattr(emulated, item.name)) for item in dataclasses.fields(emulated)])
    said = subprocess.run([*apart, sys.executable, "-c", NESTED, paths], stdout=subprocess.PIPE, text=True, check=True)
    gpus, pid, waited, counted = json.loads(said.stdout)
    assert "44" in gpus
    assert set(gpus) <= {"43", "44"}
    assert pid < 1000
    assert counted == pytest.approx(waited, abs=1e-8)


EVENTS = st.lists(st.tuples(st.integers(0, 10**15), st.integers(0, 10**12)), max_size=20)


@given(EVENTS, st.integers(0, 10**12))
def test_waits_under_way_count(waits: list[tuple[int, int]], late: int) -> None:
    """Waits that are over and waits that are not add up to the time that was waited."""
    clock = 10**15 + late
    over = [(begin, length) for begin, length in waits if begin + length <= clock]
    under_way = [begin for begin, length in waits if begin + length > clock]
    done = sum(length for _, length in over)
    found = disk_ns((done, len(under_way), sum(under_way) & (1 << 64) - 1), clock, clock)
    assert found == done + sum(clock - begin for begin in under_way)


@given(st.integers(0, 100), st.integers(0, 2**64 - 1))
def test_numbers_that_do_not_fit_together(blocked: int, since: int) -> None:
    """Numbers read while the kernel changed them add no more than can have been waited."""
    longest = 10**9
    assert 7 <= disk_ns((7, blocked, since), 10**15, longest) <= 7 + blocked * longest
