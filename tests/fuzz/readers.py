"""The table of all that reads what others have written: a reader that is new is one more row."""

from __future__ import annotations

import ctypes
import gzip
import io
import json
import mmap
import os
import shutil
import signal
import struct
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest import mock

from agent.binaries import elf_worker
from agent.binaries.opened_file import open_library
from agent.binaries.struct_layouts import TABLE, checked
from agent.binaries.usdt import parse_notes
from agent.kernel_log import kmsg, patterns
from agent.kernel_log.xid import Xids
from agent.nccl.proxy_state import Proxy
from agent.nccl.ras.status import StatusError, communicators
from agent.nccl.ras.worker import port_of
from agent.nvml import watchdog
from agent.nvml.client import Child
from agent.nvml.dcgm.client import Client, _object
from agent.nvml.watchdog import Watch
from agent.probes.training_processes import TrainingProcesses
from agent.process.memory import Memory
from agent.process.procfs import Process, Processes, gpu_of, parse_maps, parse_stat
from agent.python_gc.gc_stats import find_statistics
from agent.rdma.ethtool import Ethtool, split_names
from agent.rdma.ethtool_counters import MOST_STATISTICS, Statistics
from agent.sampling.reader import Worker
from agent.sources.dcgm import Dcgm
from agent.sources.gpu import Gpu
from agent.stacks.kernel_threads import read_threads
from agent.stacks.py_spy import SpyError, parse_output
from agent.stacks.sampled import SampleError, read_perf, read_speedscope, unpacked
from cli.config import ConfigError, read_settings
from detector.alerts.blindness import Blindness
from detector.alerts.delivery_log import DeliveryLog, read_delivery_log
from detector.calibration import CalibrationError
from detector.calibration import load as load_calibration
from detector.config import Config
from detector.engine.pipeline import Detector
from detector.evaluation.labels import LabelError, read_labels
from detector.service.snapshot import SnapshotError, dump, load
from emulator.libraries.build import build
from store.influx.answers import server_message
from store.influx.config import address_of
from store.influx.flux import InfluxByFlux
from store.influx.influxql import Influx
from store.line_protocol.parse import batches_of, members
from store.line_protocol.write import unpack
from store.open import open_store
from store.schema.contract import StoreError
from store.schema.sample import Batch, Sample
from store.spool.queue import Spool
from store.sqlite.embedded import Embedded
from store.transfer.export import export
from store.zoom_requests import ZoomKey, zoom_requests_in
from tests.fuzz.analysis_readers import ANALYSIS_READERS
from tests.fuzz.machine_readers import MACHINE_READERS
from tests.fuzz.reader import Reader, here, packed, text
from tests.fuzz.row_readers import ROW_READERS


def _environment(data: bytes, *_: object) -> None:
    words = dict(pair.partition("=")[::2] for pair in data.decode(errors="replace").split("\0"))
    gpu_of(words)
    port_of(words)


def _kernel_log(data: bytes, *_: object) -> None:
    known = Xids()
    for line in data.splitlines():
        record = kmsg.parse(line)
        fact = patterns.read(record.text if record else line.decode("ascii", "replace"))
        if fact and fact.xid is not None:
            known.classify(10**18, "gpu:0", fact.xid, fact.message)


def _kernel_log_file(data: bytes, folder: Path, _: Random) -> None:
    file = folder / "kmsg"
    file.write_bytes(b"")
    with closing(kmsg.Log(file)) as log:
        file.write_bytes(data)
        for _round in range(3):
            log.read(50)


def _proc(data: bytes, folder: Path, chance: Random) -> None:
    """A /proc of one process with hostile files."""
    for name in ("7", "7/task", "7/task/7"):
        (folder / name).mkdir(exist_ok=True)
    for name in ("stat", "maps", "environ", "status", "task/7/stat", "task/7/stack", "task/7/syscall", "task/7/wchan"):
        cut = chance.randrange(len(data) + 1)
        (folder / "7" / name).write_bytes(data[cut:] if chance.random() < 0.5 else data)
    processes = Processes(folder)
    for process, _files in processes.changed():
        processes.environment(process.pid)
    processes.environment(7)
    read_threads(folder / "7")


def _elf(data: bytes, folder: Path, _: Random) -> None:
    """In a child under the limits of the agent's own; its death by them is as good as an answer."""
    file = folder / "lib.so"
    file.write_bytes(data)
    child = os.fork()
    if not child:
        try:
            import resource

            resource.setrlimit(resource.RLIMIT_DATA, (elf_worker.DATA_BYTES, elf_worker.DATA_BYTES))
            resource.setrlimit(resource.RLIMIT_CPU, (4, 4))
            names = ["ncclCommInitRank", "ncclAllReduce", "cudaLaunchKernel", "gc_collect_main"]
            for answer in elf_worker.answers(open_library([str(file)]), names, "ncclCommInitRank"):
                json.dumps(answer)
                assert all(0 <= at < 1 << 63 for at in answer.get("functions", {}).values())
            os._exit(0)
        finally:
            os._exit(1)
    status = os.waitpid(child, 0)[1]
    assert status in (0, signal.SIGXCPU, signal.SIGKILL), f"the child ended with {status}"


def _elf_seeds(folder: Path) -> Sequence[bytes]:
    if not shutil.which("gcc"):
        return [Path("/proc/self/exe").read_bytes()[: 1 << 20]]
    libraries = build()
    return [libraries.nccl.read_bytes(), libraries.cudart.read_bytes()]


_PAGES = mmap.mmap(-1, 1 << 20)
_BASE = ctypes.addressof(ctypes.c_char.from_buffer(_PAGES))


def _process_memory(data: bytes, _: Path, chance: Random) -> None:
    """NCCL's structures in pages of this process, full of pointers into the same pages."""
    layout = chance.choice(list(json.loads(TABLE.read_text()).values()))["layout"]
    size = len(_PAGES)
    _PAGES[: min(len(data), size)] = data[:size]
    pointers = [*(_BASE + chance.randrange(size - 8) for _ in range(9)), 0, 1, 4096, (1 << 47) - 8, (1 << 64) - 1]
    for _ in range(300):
        word = chance.choice((*pointers, 2, 128, 1 << 40, chance.getrandbits(64)))
        struct.pack_into("<Q", _PAGES, chance.randrange(size - 8), word)
    with closing(Memory(os.getpid())) as memory:
        at = _BASE + chance.randrange(size)
        memory.identity(at, layout)
        memory.operations(at, layout, chance.random() < 0.5)
        head = memory.active_list(at, layout)
        for place in (head, at):
            proxy = Proxy(memory, place, layout) if place else None
            for _ in range(3 if proxy else 0):
                assert proxy is not None
                proxy.sample()
                struct.pack_into("<Q", _PAGES, chance.randrange(size - 8), chance.choice(pointers))
        find_statistics(memory, at, chance.choice((0, 8, 4096, 4 << 20, 1 << 40)))


def _layout(data: bytes, *_: object) -> None:
    checked(json.loads(data))


def _layout_seeds(folder: Path) -> Sequence[bytes]:
    return [packed(one["layout"]).encode() for one in list(json.loads(TABLE.read_text()).values())[:3]]


def _readings(store: Any) -> None:
    rows = [Sample("gpu", {"gpu": str(n), "power_watts": 300.0 + n, "uuid": f"GPU-{n}"}) for n in range(5)]
    event = Sample("event", {"source": "kernel_log", "code": "79", "message": "Xid 79"})
    store.write([Batch("m1", 10**18 + at, (*rows, event)) for at in range(7)])


def _store_seeds(folder: Path) -> Sequence[bytes]:
    with closing(Embedded(folder / "s.db")) as store:
        _readings(store)
    return [(folder / "s.db").read_bytes()]


def _store(data: bytes, folder: Path, _: Random) -> None:
    file = folder / "s.db"
    for left in folder.iterdir():
        left.unlink()
    file.write_bytes(data)
    with closing(open_store(str(file))) as store:
        for table in store.tables():
            store.read(table)
        store.span()
        _readings(store)


def _spool_seeds(folder: Path) -> Sequence[bytes]:
    with closing(Spool(folder, 1 << 20, 3600.0, 600.0)) as spool:
        for number in range(5):
            spool.put([b"gpu,machine=m1,gpu=0 _row=1i,power_watts=%d 1" % number], 10**18 + number)
        spool.settle(spool.oldest_posts(1 << 10)[:1], [(b"bad", "why")], 10**18)
    return [(folder / "spool.db").read_bytes()]


def _spool(data: bytes, folder: Path, _: Random) -> None:
    for left in folder.iterdir():
        left.unlink()
    (folder / "spool.db").write_bytes(data)
    with closing(Spool(folder, 1 << 20, 3600.0, 600.0)) as spool:
        spool.line_counts()
        spool.refused()
        spool.settle(spool.oldest_posts(1 << 16), now=10**18)
        spool.request_resend("another start")
        if posts := spool.posts_to_resend(1 << 16):
            spool.settle_resent(posts)
        spool.put([b"gpu,machine=m1,gpu=0 _row=1i 2"], 10**18 + 9)


def _recording_seeds(folder: Path) -> Sequence[bytes]:
    with closing(Embedded(folder / "s.db")) as store:
        _readings(store)
        export(store, folder / "out", (10**18 - 1, 10**18 + 99))
    return [(folder / "out" / "gpu.parquet").read_bytes()]


def _recording(data: bytes, folder: Path, _: Random) -> None:
    (folder / "gpu.parquet").write_bytes(data)
    store = open_store(str(folder))
    store.span(10**18)
    store.read("gpu")


def _snapshot_seeds(folder: Path) -> Sequence[bytes]:
    return [dump(Detector().state, 10**18)]


def _snapshot(data: bytes, folder: Path, _: Random) -> None:
    (folder / "state.npz").write_bytes(data)
    load(folder / "state.npz", Config())


def _log_seeds(folder: Path) -> Sequence[bytes]:
    return [DeliveryLog(3, 1, error="no", reported={"9dc7141ebdaed94b": ("crit", 10**18)}).packed()]


def _log(data: bytes, folder: Path, _: Random) -> None:
    (folder / "log.json").write_bytes(data)
    read_delivery_log(folder / "log.json")
    Blindness(folder / "log.json", 60.0)


def _settings(data: bytes, folder: Path, _: Random) -> None:
    (folder / "p.toml").write_bytes(data)
    read_settings(folder / "p.toml")


def _calibration(data: bytes, folder: Path, _: Random) -> None:
    (folder / "c.json").write_bytes(data)
    load_calibration(folder / "c.json")


def _labels(data: bytes, folder: Path, _: Random) -> None:
    (folder / "labels.json").write_bytes(data)
    read_labels(folder)


def _lines(data: bytes, *_: object) -> None:
    batches_of(data.splitlines(), lambda error: None)


def _message(data: bytes, *_: object) -> None:
    for member in members(data):
        batches_of(unpack(member), lambda error: None)


class SaidByChild(Child):
    """A child that calls NVML and has said these bytes; then it has ended."""

    def __init__(self, file: Path) -> None:
        self._buffer, self._where = b"", mmap.mmap(-1, mmap.PAGESIZE)
        self._process: Any = SimpleNamespace(returncode=1, kill=lambda: None, poll=lambda: None, wait=lambda s: None)
        self._stdin: Any = SimpleNamespace(fileno=lambda: -1, close=lambda: None)
        self._stdout: Any = io.BytesIO(file.read_bytes())
        self._poll: Any = SimpleNamespace(poll=lambda ms: True)

    def ask(self, slow: bool) -> None:
        """It has said all."""

    def _chunk(self) -> bytes:
        read: bytes = self._stdout.read(1 << 16)
        return read


def _nvml(data: bytes, folder: Path, chance: Random) -> None:
    """What a child says goes into the store or is one source's error, and a child that is well is read again."""
    for left in folder.iterdir():
        left.unlink()
    said = folder / "said"
    watch = Watch(folder, 0.0, lambda paths: SaidByChild(said))
    worker, now = Worker("gpu", Gpu(watch, TrainingProcesses(Processes()))), 10**18
    with (
        closing(Embedded(folder / "gpus.db")) as store,
        mock.patch.object(watchdog, "find_library", return_value=["x"]),
    ):
        for body, times in ((data, 3), (_NVML, 6)):
            said.write_bytes(body)
            for _ in range(times):
                now += 61 * 10**9
                worker.started, worker.running = 0.0, Future()
                worker.read(now)
                found = worker.collect(0.0)
                store.write([Batch("m1", now, tuple(found))])
    assert any(one.table == "gpu" and one.values["power_watts"] == 411.5 for one in found), worker.error


class _DcgmSaid(Client):
    """A child that reads DCGM and has said these bytes."""

    def __init__(self, data: bytes) -> None:
        super().__init__([], 1.0, True)
        self._lines = data.split(b"\n")

    def read(self, now_s: float) -> list[dict[str, Any]]:
        """All of it."""
        return [value for line in self._lines if (value := _object(line)) is not None]


def _dcgm(data: bytes, folder: Path, _: Random) -> None:
    """What the child says becomes rows that a store takes."""
    for left in folder.iterdir():
        left.unlink()
    source = Dcgm(_DcgmSaid(data))
    with closing(Embedded(folder / "dcgm.db")) as store:
        for at in range(3):
            store.write([Batch("m1", 10**18 + at, tuple(source.read(10**18 + at)))])


class _Replying(Ethtool):
    """An interface with a driver that replies these bytes, in pieces of any length."""

    def __init__(self, data: bytes, chance: Random) -> None:
        super().__init__()
        self._data, self._chance = data, chance

    def address(self, interface: str) -> bytes:
        """That of its folder."""
        return bytes(14)

    def _ask(self, interface: str, question: bytes) -> None:
        self._view[: len(question)] = question
        start = self._chance.choice((0, 0, 4, 8, 12))
        self._view[start : start + len(self._data)] = self._data


def _ethtool_seeds(folder: Path) -> Sequence[bytes]:
    names = b"".join(name.ljust(32, b"\0") for name in (b"rx_pause_ctrl_phy", b"tx_discards_phy", b"rx0_packets"))
    asked, counts = struct.pack("IIQI", 0x37, 0, 2, 3), struct.pack("IIQQQ", 0x1D, 3, 7, 8, 9)
    return [asked, struct.pack("III", 0x1B, 1, 3) + names, counts]


def _ethtool(data: bytes, folder: Path, chance: Random) -> None:
    (folder / "eth0").mkdir(exist_ok=True)
    (folder / "eth0/address").write_text("00:00:00:00:00:00\n")
    with closing(_Replying(data[: 1 << 19], chance)) as ethtool:
        statistics = Statistics(ethtool, [folder / "eth0"])
        assert len(statistics.names) <= MOST_STATISTICS
        statistics.read()


_FLUX = (
    "#datatype,string,long,dateTime:RFC3339Nano,string,string,double,long\r\n"
    "#group,false,false,false,true,true,false,false\r\n"
    "#default,_result,,,,,,\r\n,result,table,_time,machine,gpu,power_watts,_row\r\n"
    ",,0,2024-05-01T00:00:00.5Z,m1,0,311.5,1\r\n,,0,2024-05-01T00:00:01Z,m1,0,,1\r\n\r\n"
)


def _flux(data: bytes, *_: object) -> None:
    store = InfluxByFlux(_Answering("text/csv", data, 0))  # type: ignore[arg-type]
    for question in (lambda: store.read("gpu"), store.span, store.tables):
        with suppress(StoreError):
            question()


class _Answering:
    """A server of InfluxDB that answers each question alike."""

    address = address_of("http://influx:8086/peerwatch")

    def __init__(self, kind: str, data: bytes, cut: int) -> None:
        self.kind, self.pieces = kind, (data[:cut], data[cut:])

    def flux(self, _: str) -> bytes:
        """The answer to Flux."""
        return b"".join(self.pieces)

    @contextmanager
    def query(self, _: str) -> Iterator[tuple[str, Iterator[bytes]]]:
        """The answer."""
        yield self.kind, iter(self.pieces)


def _answer(kind: str) -> Callable[[bytes, Path, Random], object]:
    def read(data: bytes, _: Path, chance: Random) -> None:
        store = Influx(_Answering(kind, data, chance.randrange(len(data) + 1)))  # type: ignore[arg-type]
        store._checked = chance.random() < 0.8
        store.read("gpu")
        store.span()
        store.tables()

    return read


def _answer_seeds(pack: Callable[[Any], bytes]) -> Callable[[Path], Sequence[bytes]]:
    values = [[10**18 + at, 1, 300.5 + at, "GPU-1"] for at in range(5)]
    series = {"name": "gpu", "tags": {"machine": "m1", "gpu": "0"}, "columns": ["time", "_row", "power_watts", "uuid"]}
    return lambda folder: [pack({"results": [{"statement_id": 0, "series": [{**series, "values": values}]}]})]


def _msgpack(value: Any) -> bytes:
    import msgpack

    found: bytes = msgpack.packb(value)
    return found


def _zoom_requests(data: bytes, folder: Path, _: Random) -> None:
    (folder / "key").write_bytes(b"5" * 64)
    key = ZoomKey("m1", str(folder / "key"))
    assert not any(key.signed(request) for request in zoom_requests_in(data))


def _array(data: bytes, *_: object) -> None:
    list(parse_notes(data))
    split_names(data)


_HELLO = {
    "driver": "550.54",
    "there": {"0": ["GPU-a", False], "1": ["GPU-b", True]},
    "places": {"0": ["1654", "0000:3b:00.0"], "1": ["1655", "0000:5e:00.0"]},
    "instances": {"1": {"0": "MIG-c"}},
    "lost": {},
    "unread": {},
}
_READ = {
    "gpus": {"0": {"power_watts": 411.5, "busy_ratio": 0.5}, "1": {"power_watts": 399.0}},
    "parts": {"1": {"0": {"memory_used_bytes": 7}}},
    "lost": {},
    "unread": {},
    "events": [[0, 8, 79, 1]],
    "dropped": 0,
    "processes": {"0": [1], "1": [2]},
}
_NVML = "".join(json.dumps(said) + "\n" for said in (_HELLO, _READ, _READ, _READ)).encode()
_DCGM = {
    "gpus": {"0": {"tensor_active_ratio": 0.41}, "1": {"tensor_active_ratio": 0.39}},
    "switches": {"0": {"temperature_celsius": 47.0, "fatal_sxid": 12028.0}},
    "incidents": [["gpu:1", 16, True, "2 volatile double-bit ECC errors"], ["nvswitch:0", 2048, True, "fatal errors"]],
    "known": ["gpu:0", "gpu:1", "nvswitch:0"],
    "note": "",
}
_RANK = {"rank": 0, "host": "10.0.0.1", "pid": 7, "cuda_dev": 0, "nvml_dev": 0}
_STATUS = {"init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False, "abort_flag": False}
_ABSENT = {**_RANK, "rank": 1, "status": {"unresponsive": True, "considered_dead": False}}
_GROUP = {
    "hash": "0xc0ffee",
    "secondary_hash": "0x1:0x2",
    "size": 2,
    "ranks_count": 1,
    "missing_ranks_count": 1,
    "ranks": [{**_RANK, "status": _STATUS, "collective_counts": {"AllReduce": 41}}],
    "missing_ranks": [_ABSENT],
}
_RAS = {
    "nccl_version": "2.29.3",
    "cuda_runtime_version": 12090,
    "cuda_driver_version": 13000,
    "timestamp": "now",
    "communicators_count": 1,
    "communicators": [_GROUP],
    "ras": {"collection_time_sec": 0.1, "timeouts_count": 0},
}
_TAIL = {"excursions": 30, "highest": 1.5, "over": 0.5, "scale": 0.2, "heavy": False, "caution": 1.5}
_STREAM = {"hours": 7.5, "crossed": 1.0, "peaks": [0.6, 0.3], "machines": [4, 2], "multiplier": 1.2}
_CALIBRATION = {
    "version": 3,
    "budget": {"alarms": 1, "hours": 168, "machines": 1000},
    "recordings": 3,
    "machine_hours": 20.5,
    "settings": {"sigmas": 4.0},
    "tails": {"progress": _TAIL},
    "tables": {"gpu": {"power_watts": _STREAM}},
}
_THREAD = {
    "thread_name": "MainThread",
    "frames": [{"name": "f", "filename": "a.py", "short_filename": None, "line": 3}],
}
_NOTE = "\x08\0\0\0\x30\0\0\0\x03\0\0\0stapsdt\0" + "\x01" * 24 + "python\0gc__start\0-4@%eax\0"
_LOG = (
    "4,1,2,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n6,2,3,-;mce: [Hardware Error]: CPU 1\n"
)
_TOML = 'store = "/x.db"\n[agent]\nsources = ["host"]\n[detector]\ndeviation_sigmas = 5.0\n[alerts]\nsinks = ["log"]\n'
_LP = 'gpu,machine=a\\ b,gpu=0 _row=1i,x=1.5,t="a\\"b,c" 12345\nevent,machine=m _row=1i,message="x y" 1'

_FAULT = {"machine": "m03", "device": "gpu:1", "kind": "slow_gpu", "start": 10**18, "end": 10**18 + 9}
_LABELS = {"machines": 9, "faults": [_FAULT], "unjudged": [{"start": 1, "end": 5}]}

_SAMPLED = {"name": "MainThread", "samples": [[0], [0, 0]], "weights": [0.02, 0.02]}
_SPEEDSCOPE = {"shared": {"frames": [{"name": "f", "file": "/x/a.py"}]}, "profiles": [_SAMPLED]}
_SAMPLE = " 1.25:  7f11 step+0x3c (/x/a.so)\n"


def _profile_row(data: bytes, _: Path, __: Random) -> None:
    functions, _, series = data.decode(errors="replace").partition("\0")
    unpacked(functions, series).packed()


def _speedscope(data: bytes, folder: Path, _: Random) -> None:
    (folder / "samples").write_bytes(data)
    read_speedscope(folder / "samples").packed()


def _perf(data: bytes, _: Path, __: Random) -> None:
    read_perf(data.decode(errors="replace").splitlines(), 1.0, 1.0, 50.0).packed()


READERS: tuple[Reader, ...] = (
    Reader("maps", here("/proc/self/maps"), lambda data, *_: parse_maps(Process(1, 1), data)),
    Reader("stat", here("/proc/self/stat"), lambda data, *_: parse_stat(data), (ValueError,)),
    Reader("proc", here("/proc/self/maps"), _proc, (OSError,)),
    Reader(
        "environment",
        text("LOCAL_RANK=3\0CUDA_VISIBLE_DEVICES=0,1\0NCCL_RAS_ADDR=[::1]:28028\0"),
        _environment,
        (StatusError,),
    ),
    Reader("elf and dwarf", _elf_seeds, _elf),
    Reader("notes and ethtool names", text(_NOTE, "rx_pause\0" * 20), _array),
    Reader("process memory", text("\0" * 4096), _process_memory, (struct.error, KeyError)),
    Reader("layouts", _layout_seeds, _layout, (ValueError, RecursionError)),
    Reader("kernel log", text(_LOG), _kernel_log),
    Reader("kernel log file", text(_LOG), _kernel_log_file),
    Reader(
        "ras",
        text(packed(_RAS)),
        lambda data, *_: list(communicators(data)),
        (StatusError,),
    ),
    Reader("py-spy", text(packed([_THREAD])), lambda data, *_: parse_output(data), (SpyError,)),
    Reader("profile row", text("wait f (a.py)\npython g\0" + "0*7 1 0"), _profile_row, (SampleError,)),
    Reader("speedscope", text(packed(_SPEEDSCOPE)), _speedscope, (SampleError,)),
    Reader("perf", text(_SAMPLE), _perf),
    Reader("line protocol", text(_LP), _lines, (StoreError,)),
    Reader("stream message", lambda folder: [gzip.compress(_LP.encode())], _message, (StoreError,)),
    Reader(
        "zoom requests",
        text(packed({"results": [{"series": [{"values": [[1, "host", 2.0, 3, "5e8f", None]]}]}]})),
        _zoom_requests,
        (StoreError,),
    ),
    Reader(
        "influx json", _answer_seeds(lambda value: packed(value).encode()), _answer("application/json"), (StoreError,)
    ),
    Reader("influx msgpack", _answer_seeds(_msgpack), _answer("application/x-msgpack"), (StoreError,)),
    Reader("influx flux", text(_FLUX), _flux),
    Reader("nvml child", lambda folder: [_NVML], _nvml, opens=("/proc/",)),
    Reader("dcgm child", text(packed(_DCGM) + "\n"), _dcgm),
    Reader("ethtool", _ethtool_seeds, _ethtool, (OSError,)),
    Reader(
        "influx error",
        text('{"error":"database not found"}', '{"code":"x","message":"y"}'),
        lambda data, *_: server_message(data),
    ),
    Reader("labels", text(packed(_LABELS)), _labels, (LabelError,)),
    Reader("embedded store", _store_seeds, _store, (StoreError,)),
    Reader("spool", _spool_seeds, _spool, (StoreError,)),
    Reader("recording", _recording_seeds, _recording, (StoreError,)),
    Reader("snapshot", _snapshot_seeds, _snapshot, (SnapshotError,)),
    Reader("delivery log", _log_seeds, _log),
    Reader("configuration", text(_TOML), _settings, (ConfigError,)),
    Reader("calibration", text(packed(_CALIBRATION)), _calibration, (CalibrationError,)),
    *MACHINE_READERS,
    *ANALYSIS_READERS,
    *ROW_READERS,
)
