"""The gpu source on a real device: `make test ARGS="tests/hardware -s"` prints what docs/hardware.md asks for."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.config import AgentConfig
from agent.context import Context
from agent.sources.gpu import open_source
from store.schema.catalogue import METRICS

pytestmark = pytest.mark.hardware

PLAUSIBLE = {
    "power_watts": (5, 2500),
    "power_limit_watts": (30, 2500),
    "temperature_celsius": (5, 110),
    "memory_temperature_celsius": (5, 120),
    "sm_clock_hertz": (1e8, 4e9),
    "memory_clock_hertz": (1e8, 2e10),
    "memory_used_bytes": (0, 1e12),
    "pcie_generation": (1, 7),
    "pcie_width": (1, 16),
    "nvlink_links_up": (0, 18),
    "remapped_rows": (0, 1024),
    "recovery_action": (0, 4),
    "energy_joules_total": (0, 1e12),
}


class Seen:
    """Readings of all GPUs, a second apart, and what was reported besides."""

    def __init__(self, count: int, readings: int = 13) -> None:
        self.source = open_source(Context(AgentConfig()))
        self.rows: list[dict[str, dict[str, Any]]] = []
        self.events: list[dict[str, Any]] = []
        self.seconds: list[float] = []
        limit = time.monotonic() + 120
        while len(self.rows) < readings and time.monotonic() < limit:
            time.sleep(1)
            self._read(count)

    def _read(self, count: int) -> None:
        samples = list(self.source.read(time.time_ns()))
        rows = {str(sample.values["gpu"]): dict(sample.values) for sample in samples if sample.table == "gpu"}
        self.events += [dict(sample.values) for sample in samples if sample.table == "event"]
        took = [sample.values["duration_seconds"] for sample in samples if sample.table == "source"]
        if len(rows) == count:
            self.rows.append(rows)
            self.seconds += [float(value) for value in took if isinstance(value, float)]


@pytest.fixture(scope="module")
def seen(real_gpus: int) -> Iterator[Seen]:
    """A quarter of a minute of readings."""
    made = Seen(real_gpus)
    yield made
    made.source.close()


def test_every_gpu_has_rows(seen: Seen, real_gpus: int) -> None:
    """Each GPU of the driver is read at each reading, and none has a critical event."""
    assert len(seen.rows) == 13
    assert set(seen.rows[-1]) == {str(index) for index in range(real_gpus)}
    assert not [event for event in seen.events if event["severity"] == "crit"]


def test_columns_are_known_and_plausible(seen: Seen) -> None:
    """What the device gives lies where such figures lie; which columns it lacks is printed."""
    for name, row in seen.rows[-1].items():
        missing = sorted(metric.name for metric in METRICS.values() if metric.table == "gpu" and metric.name not in row)
        print(f"\ngpu {name}: {row}\nlacks {', '.join(missing) or 'nothing'}")
        for column, value in row.items():
            assert column == "gpu" or f"gpu.{column}" in METRICS
            low, high = PLAUSIBLE.get(column, (0, float("inf")))
            assert isinstance(value, str) or low <= value <= high, f"{column} is {value}"
            assert not column.endswith("_ratio") or value <= 1


def test_counters_only_grow(seen: Seen) -> None:
    """No counter falls within the readings, and the energy is what the power says, roughly."""
    for name, last in seen.rows[-1].items():
        rows = [rows[name] for rows in seen.rows]
        for column in (column for column in last if column.endswith("_total")):
            values = [row[column] for row in rows if column in row]
            assert values == sorted(values), f"{column} of gpu {name}: {values}"
        if "energy_joules_total" in last:
            drawn = (last["energy_joules_total"] - rows[0]["energy_joules_total"]) / (len(rows) - 1)
            assert 0.3 < drawn / (sum(row["power_watts"] for row in rows) / len(rows)) < 3


def test_names_are_those_of_nvidia_smi(seen: Seen) -> None:
    """The numbers of GPUs are those that people see, by their UUIDs."""
    if shutil.which("nvidia-smi") is None:
        pytest.skip("no nvidia-smi to compare with")
    order = ["nvidia-smi", "--query-gpu=index,uuid,driver_version,name", "--format=csv,noheader"]
    lines = subprocess.run(order, capture_output=True, text=True, check=True).stdout.strip().splitlines()
    print("\n" + "\n".join(lines))
    theirs = {line.split(", ")[0]: line.split(", ")[1] for line in lines}
    mine = {name: row["uuid"] for rows in seen.rows for name, row in rows.items() if "uuid" in row}
    assert mine == theirs


def test_the_cost_is_printed(seen: Seen) -> None:
    """Seconds that the driver took for a reading, CPU and memory of the child."""
    child = seen.source._watch._child
    assert child is not None
    words = Path(f"/proc/{child.pid}/status").read_text().split()
    cpu = sum(map(int, Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
    took = sorted(seen.seconds)
    print(
        f"\na reading took {took[len(took) // 2] * 1e3:.1f} ms (median), {took[-1] * 1e3:.1f} ms at most; the child: "
        f"{int(words[words.index('VmRSS:') + 1]) / 1000:.1f} MB, "
        f"{cpu / os.sysconf('SC_CLK_TCK'):.2f} s of CPU for start and {len(seen.rows)} readings"
    )
    assert len(took) >= len(seen.rows)
