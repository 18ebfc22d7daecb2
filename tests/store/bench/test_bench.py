"""Cost of storing samples: 64 machines of 8 GPUs, one reading a second, in one file."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from store.influx.config import InfluxConfig, address_of
from store.influx.server import Server
from store.line_protocol.write import lines_of, pack
from store.recording import Recording
from store.schema.catalogue import METRICS
from store.schema.columns import type_of
from store.schema.sample import Batch, Sample
from store.schema.time import LATEST
from store.spool.queue import Spool
from store.spool.sender import Spooled
from store.sqlite.embedded import Embedded
from store.transfer.export import export
from tests import servers
from tests.servers import ServerProcess
from tests.store.conftest import influx
from tests.wires import Scripted

pytestmark = pytest.mark.bench

MACHINES, GPUS, SECONDS = 64, 8, 60


def reading(machine: int, second: int) -> Batch:
    """All tables that an agent writes each second."""
    names = {table: [m.name for m in METRICS.values() if m.table == table and m.kind != "text"] for table in KEYS}
    samples = [
        Sample(
            table, {**key(gpu), **{name: value(table, name, second * 1.5 + at) for at, name in enumerate(names[table])}}
        )
        for table, key in KEYS.items()
        for gpu in range(1 if table == "host" else GPUS)
    ]
    return Batch(f"m{machine:03}", second * 10**9, tuple(samples))


def value(table: str, name: str, number: float) -> float:
    """A number as sources give it: whole where the column is."""
    return int(number) if type_of(table, name) == "int64" else number


KEYS: dict[str, Callable[[int], dict[str, str]]] = {
    "host": lambda gpu: {},
    "gpu": lambda gpu: {"gpu": str(gpu)},
    "rdma": lambda gpu: {"port": f"mlx5_{gpu}/1"},
    "nccl": lambda gpu: {"gpu": str(gpu), "slot": "0", "comm": f"{gpu:016x}"},
    "cuda": lambda gpu: {"gpu": str(gpu)},
}


@contextmanager
def timed(what: str, count: int, unit: str) -> Iterator[None]:
    """Print how long it took, in all and for one."""
    wall, cpu = time.perf_counter(), time.process_time()
    yield
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(f"{what}: {wall:.2f} s, {wall / count * 1e6:.2f} µs a {unit} ({cpu / count * 1e6:.2f} µs of CPU)")


def test_bench_store(tmp_path: Path) -> None:
    """Rows written, read, exported and dropped are all of them; the times are printed."""
    batches = [reading(machine, second) for second in range(1, SECONDS + 1) for machine in range(MACHINES)]
    rows = MACHINES * SECONDS * (1 + GPUS * (len(KEYS) - 1))
    store = Embedded(tmp_path / "s.db")
    print()
    with timed("write, a transaction a reading", len(batches), "reading"):
        for batch in batches:
            store.write([batch])
    print(f"on disk: {store.size_bytes() / rows:.0f} bytes a row, {store.size_bytes() / len(batches):.0f} a reading")
    assert store.read("task").num_rows == 0  # loads pyarrow
    with timed("read all", rows, "row"):
        assert sum(store.read(table).num_rows for table in store.tables()) == rows
    with timed("read the newest second", 1, "second"):
        last = sum(store.read(table, (SECONDS - 1) * 10**9).num_rows for table in store.tables())
    assert last == rows // SECONDS
    with timed("export", rows, "row"):
        assert export(store, tmp_path / "r", (0, LATEST)) == rows
    with timed("read the recording", rows, "row"):
        recording = Recording(tmp_path / "r")
        assert sum(recording.read(table).num_rows for table in recording.tables()) == rows
    with timed("drop half", rows // 2, "row"):
        assert store.prune(SECONDS * 10**9, age_s=SECONDS / 2 - 1) == rows // 2
    store.close()


WIDE = [f"reading_{n}_ratio" for n in range(40)]


def best_of(what: str, lines: int, make: Callable[[], object]) -> None:
    """Print what a line takes in the best of many attempts."""
    took = []
    for _ in range(60):
        began = time.process_time()
        make()
        took.append((time.process_time() - began) / lines)
    print(
        f"{what}: {min(took) * 1e6:.2f} µs of CPU a line ({1 / min(took):,.0f} a second), "
        f"half of the attempts {np.median(took) * 1e6:.2f} µs or less"
    )


def by_client(batches: list[Batch]) -> list[str]:
    """Lines as influxdb-client's `Point` makes them."""
    from influxdb_client import Point

    lines = []
    for batch in batches:
        point = Point("gpu").tag("machine", batch.machine).time(batch.time)
        for name, value in batch.samples[0].values.items():
            point = point.tag(name, value) if name == "gpu" else point.field(name, value)
        lines.append(point.to_line_protocol())
    return lines


def test_bench_line_protocol() -> None:
    """Lines of 40 numbers, exact and of six digits, by our encoder and by the client's `Point`; and of a reading."""
    numbers = (np.random.default_rng(7).random((200, len(WIDE))) * 1000).tolist()
    exact, short = (
        [
            Batch(f"m{n:03}", n, (Sample("gpu", {"gpu": "0", **dict(zip(WIDE, row, strict=True))}),))
            for n, row in enumerate(rows)
        ]
        for rows in (numbers, [[float(f"{number:.6g}") for number in row] for row in numbers])
    )
    readings = [reading(1, 1)]
    print()
    for what, batches in (("40 exact numbers", exact), ("40 numbers of six digits", short)):
        best_of(f"our lines of {what}", len(batches), lambda batches=batches: lines_of(batches))  # type: ignore[misc]
        best_of(f"Point's lines of {what}", 20, lambda batches=batches: by_client(batches[:20]))  # type: ignore[misc]
    best_of("our lines of a reading of 8 GPUs", len(readings[0].samples), lambda: lines_of(readings))
    lines = lines_of(exact)
    best_of("gzip", len(lines), lambda: pack(lines))
    print(f"{sum(map(len, lines)) / len(lines):.0f} bytes a line, {len(pack(lines)) / len(lines):.0f} packed")
    assert len(lines) == len(exact)


def test_bench_spool(tmp_path: Path) -> None:
    """Cost of a reading for an agent with InfluxDB as its store, sender included, with a real server."""
    server = servers.influxd(tmp_path)
    server.start()
    begin = time.time_ns()
    sink = Spooled(
        Server(address_of(f"{server.url}/metrics"), InfluxConfig(post_seconds=1.0)),
        Spool(tmp_path / "spool", 10**9, 1e6, InfluxConfig().resend_seconds),
    )
    batches = [Batch("m001", begin + n * 10**6, reading(1, n).samples) for n in range(300)]
    slowest = 0.0
    print()
    with timed("readings of 8 GPUs to the spool and on to the server", len(batches), "reading"):
        for batch in batches:
            began = time.perf_counter()
            sink.write([batch])
            slowest = max(slowest, time.perf_counter() - began)
        sink.close()
    print(f"the slowest took {slowest * 1000:.1f} ms")
    server.kill()


def spent(server: ServerProcess) -> float:
    """CPU seconds that a server has taken."""
    assert server.process is not None
    times = psutil.Process(server.process.pid).cpu_times()
    return float(times.user + times.system)


def resident_mb(line: str) -> float:
    """VmRSS or VmHWM (its peak) of this process."""
    found = Path("/proc/self/status").read_text().split(f"{line}:")[1]
    return int(found.split()[0]) / 1024


def rest(server: ServerProcess) -> None:
    """Wait until a server has put in order what it was sent: it rests for a second."""
    while True:
        before = spent(server)
        time.sleep(1)
        if spent(server) - before < 0.05:
            return


def annotated(rows: pa.Table, names: list[str]) -> str:
    """Rows of machines, one after the other, as InfluxDB 2 answers Flux: a line a value, a table a series."""
    span = "2026-11-20T10:00:00Z,2026-11-20T11:00:00Z"
    lines = [
        "#datatype,string,long,dateTime:RFC3339,dateTime:RFC3339,dateTime:RFC3339,double,string,string,string,string",
        "#group,false,false,true,true,false,false,true,true,true,true",
        "#default,_result,,,,,,,,,",
        ",result,table,_start,_stop,_time,_value,_field,_measurement,gpu,machine",
    ]
    times = [f"{np.datetime64(time, 'ns')}Z" for time in rows.column("time").to_pylist()]
    machines = rows.column("machine").to_pylist()
    for number, name in enumerate(names):
        lines += [
            f",,{number + int(machine[1:]) * len(names)},{span},{when},{value!r},{name},gpu,0,{machine}"
            for when, machine, value in zip(times, machines, rows.column(name).to_pylist(), strict=True)
        ]
    return "\r\n".join([*lines, "", ""])


def read_by_client(rows: pa.Table, names: list[str]) -> None:
    """The same values as influxdb-client reads them by default, from a stub: InfluxDB 1 answers it no query."""
    from influxdb_client import InfluxDBClient

    answer = annotated(rows, names)
    stub = Scripted(lambda lines: (200, answer, {"Content-Type": "text/csv"}))
    count = rows.num_rows * len(names)
    client = InfluxDBClient(stub.url, "none", org="us")
    with timed(f"influxdb-client's query() of {count:,} of these values, answered by a stub", count, "value"):
        found = client.query_api().query('from(bucket: "metrics")')
    client.close()
    assert sum(len(table.records) for table in found) == count
    stub.close()


def test_bench_influx_read(tmp_path: Path) -> None:
    """15 minutes of 1000 machines, 20 metrics a second (18 million values) out of a real server, then 10 s more."""
    server, machines, seconds = servers.influxd(tmp_path), 1000, 900
    server.start()
    server.ask("CREATE DATABASE metrics WITH DURATION INF")
    store, begin, random = influx(f"{server.url}/metrics"), 1795169772 * 10**9, np.random.default_rng(5)
    names = [m.name for m in METRICS.values() if m.table == "gpu" and type_of("gpu", m.name) == "double"][:20]
    form = "gpu,machine=m%04d,gpu=0 _row=1i," + ",".join(f"{name}=%.6g" for name in names) + " %d"
    print()
    with timed("load", machines * seconds, "row"):
        for second in range(seconds):
            values = (random.random((machines, len(names))) * 300).tolist()
            when = begin + second * 10**9
            lines = [(form % (n, *values[n], when)).encode() for n in range(machines)]
            assert store.server.write(pack(lines)).good
    assert store.read("gpu", begin, begin + 10**9).num_rows == machines  # loads what reading needs
    rest(server)
    before = resident_mb("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    took = spent(server)
    with timed("read all", machines * seconds * len(names), "value"):
        found = store.read("gpu", begin - 1, begin + seconds * 10**9)
    print(f"influxd: {spent(server) - took:.2f} s of CPU", end="; ")
    print(f"{found.nbytes / 1e6:.0f} MB of table, {resident_mb('VmHWM') - before:.0f} MB at the peak, table included")
    assert found.num_rows == machines * seconds
    took = spent(server)
    for _ in range(5):
        with timed("read 10 s more", machines * 10, "row"):
            assert store.read("gpu", begin + (seconds - 11) * 10**9, begin + seconds * 10**9).num_rows == machines * 10
    print(f"influxd: {(spent(server) - took) / 5:.2f} s of CPU each")
    store.close()
    server.kill()
    read_by_client(found.filter(pc.less(found["machine"], "m0010")).sort_by("machine"), names)
