"""What keeping readings costs: 64 machines of 8 GPUs, one reading a second, in one file."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from store.catalogue import METRICS
from store.contract import LATEST
from store.embedded import Embedded
from store.export import export
from store.recording import Recording
from store.sample import Batch, Sample

pytestmark = pytest.mark.bench

MACHINES, GPUS, SECONDS = 64, 8, 60


def reading(machine: int, second: int) -> Batch:
    """All tables that an agent writes each second."""
    names = {table: [m.name for m in METRICS.values() if m.table == table and m.kind != "text"] for table in KEYS}
    samples = [
        Sample(table, {**key(gpu), **{name: second * 1.5 + at for at, name in enumerate(names[table])}})
        for table, key in KEYS.items()
        for gpu in range(1 if table == "host" else GPUS)
    ]
    return Batch(f"m{machine:03}", second * 10**9, tuple(samples))


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
    print(f"{what}: {wall:.2f} s, {wall / count * 1e6:.1f} µs a {unit} ({cpu / count * 1e6:.1f} µs of CPU)")


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
