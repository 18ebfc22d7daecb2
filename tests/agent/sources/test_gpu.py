"""GPUs through NVML: the real nvidia-ml-py in the real child, on the emulated libnvidia-ml."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.config import AgentConfig
from agent.context import Context
from agent.nvml import client, library_path, watchdog
from agent.nvml.client import Child, ChildError
from agent.nvml.conditions import AGAIN_NS, GpuConditions
from agent.nvml.fields import FAST, SLOW, Rule, choose, columns, places, spread
from agent.nvml.gpu_identity import GpuNames
from agent.nvml.library_path import NAME, find_library
from agent.nvml.watchdog import STALL_NS, Watch
from agent.probes.training_processes import TrainingProcess
from agent.process.procfs import Process
from agent.sampling import loop
from agent.sampling.reader import Reader as AllSources
from agent.sources.gpu import Gpu, open_source
from emulator.hardware.nvml_layout import COUNTS, GAUGES, GPU_IS_LOST, NOT_SUPPORTED
from emulator.hardware.nvml_state import Gpus
from emulator.libraries.build import Libraries
from store.schema.catalogue import METRICS

ROOT = Path(__file__).parents[3]
SECOND = 10**9
TABLES = ("nccl", "cuda")
Rows = dict[str, dict[str, Any]]

FIELDS: dict[str, float] = {name: 0.125 + 0.03125 * at for at, name in enumerate(GAUGES)}
FIELDS |= {name: 4096 * (17 + at) for at, name in enumerate(COUNTS)}
FIELDS |= {
    "power_watts": 611.5,
    "power_limit_watts": 702.25,
    "energy_joules_total": 90125.25,
    "temperature_celsius": 61.0,
    "memory_temperature_celsius": 77.0,
    "duty_cycle_ratio": 0.97,
    "sm_clock_hertz": 1.755e9,
    "memory_clock_hertz": 2.619e9,
    "nvlink_links": 18,
    "nvlink_links_up": 16,
    "recovery_action": 3,
    "gpm": 1,
    "mig": 0,
}
"""What one GPU is set to: a different number in each field."""


class Reader:
    """The source, read in steps of an invented time."""

    def __init__(self, gpus: Gpus) -> None:
        self.gpus = gpus
        self.context = Context(AgentConfig())
        self.source = open_source(self.context)
        self.now = 1_700_000_000 * SECOND
        self.rows: Rows = {}
        self.events: list[dict[str, Any]] = []
        self.health: dict[str, Any] = {}
        self.patient = True

    def read(self, seconds: float = 1.0) -> Rows:
        """The rows of one reading, by GPU; events and NVML's health are stored beside.

        The patient let a child that owes an answer give it, however slow this computer is.
        """
        watch = self.source._watch
        if self.patient and watch._child is not None and watch._asked is not None:
            watch._child._poll.poll(60_000)
        self.now += int(seconds * SECOND)
        found = list(self.source.read(self.now))
        self.rows = {str(sample.values["gpu"]): dict(sample.values) for sample in found if sample.table == "gpu"}
        self.events += [dict(sample.values) for sample in found if sample.table == "event"]
        self.health = next((dict(sample.values) for sample in found if sample.table == "source"), {})
        return self.rows

    def until(self, holds: Callable[[], Any], seconds: float = 1.0) -> Any:
        """Read until this is true, and give what it gave."""
        limit = time.monotonic() + 60
        while time.monotonic() < limit:
            self.read(seconds)
            if found := holds():
                return found
            time.sleep(0.02)
        raise AssertionError(f"not seen: {self.rows} {self.events} {self.health}")

    def events_of(self, code: str) -> list[dict[str, Any]]:
        """The events of that code so far."""
        return [event for event in self.events if event["code"] == code]

    @property
    def child(self) -> int:
        """Number of the child's process."""
        child = self.source._watch._child
        assert child is not None
        return child.pid


@pytest.fixture
def gpus(tmp_path: Path, emulated: Libraries, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpus]:
    """Three emulated GPUs, of which the second has a different number in each field."""
    made = Gpus(tmp_path / "gpus", create=3)
    made.set(1, **FIELDS)
    monkeypatch.setenv("EMULATED_GPUS", str(made.path))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(emulated.folder))
    yield made
    made.close()


@pytest.fixture
def reader(gpus: Gpus) -> Iterator[Reader]:
    """A source that has read all GPUs twice: what GPM and counters need."""
    made = Reader(gpus)
    made.until(lambda: made.rows)
    made.until(lambda: made.rows)
    yield made
    made.source.close()


def test_every_column_is_its_own(reader: Reader) -> None:
    """All columns of the catalogue are filled, each from its own field of NVML, in its own unit."""
    row = reader.until(lambda: reader.rows if "uuid" in reader.rows["1"] else None, seconds=4)["1"]
    wanted: dict[str, Any] = {name: value for name, value in FIELDS.items() if f"gpu.{name}" in METRICS}
    wanted |= {
        "gpu": "1",
        "uuid": reader.gpus.identity(1)[0],
        "serial": reader.gpus.identity(1)[2],
        "pci_address": "0000:2c:00.0",
        "remapped_rows": FIELDS["remapped_rows_corrected"] + FIELDS["remapped_rows_uncorrected"],
        "throttle_power_seconds_total": FIELDS["throttle_power_seconds_total"] + FIELDS["power_brake_seconds_total"],
        "nvlink_errors_total": sum(FIELDS[f"nvlink_{kind}_total"] for kind in ("crc_errors", "replays", "recoveries")),
    }
    assert row == pytest.approx(wanted)
    columns = {metric.name for metric in METRICS.values() if metric.table == "gpu"}
    columns -= {"parent_uuid", "health_failures", "health_warnings"}  # of MIG, and of DCGM
    assert set(row) == columns | {"gpu"}


def test_slow_columns_are_repeated(reader: Reader) -> None:
    """What is asked for now and then stands in each row; a change of it is seen within ten seconds."""
    reader.gpus.set(1, pcie_width=8)
    assert reader.read()["1"]["pcie_width"] == FIELDS["pcie_width"]
    assert reader.read(10)["1"]["pcie_width"] == 8


def test_throttling_between_readings_is_seen(reader: Reader) -> None:
    """The driver's own clock of throttling grows, though no reading met the reason."""
    before = reader.rows["0"]
    reader.gpus.add(0, throttle_thermal_seconds_total=0.25, power_brake_seconds_total=0.5)
    after = reader.read()["0"]
    assert after["throttle_thermal_seconds_total"] - before["throttle_thermal_seconds_total"] == pytest.approx(0.25)
    assert after["throttle_power_seconds_total"] - before["throttle_power_seconds_total"] == pytest.approx(0.5)
    assert after["throttle_reasons"] == 1


def test_nvml_hang_blocks_no_source(reader: Reader) -> None:
    """A call that does not return costs readings, never waiting: within ten seconds it is said where it hangs."""
    reader.gpus.set(2, hang=1)
    reader.patient, since = False, reader.now
    reader.until(lambda: reader.events_of("nvml_stalled"))
    assert reader.now - since <= 10 * SECOND
    (event,) = reader.events_of("nvml_stalled")
    assert (event["device"], event["severity"]) == ("gpu:2", "crit")
    assert "hangs is on gpu:2" in event["message"]
    assert not reader.rows
    assert reader.health["success"] == 0.0
    assert reader.health["failures_total"] == 1
    reader.gpus.set(2, hang=0)
    reader.patient = True
    reader.until(lambda: len(reader.rows) == 3)
    (event,) = reader.events_of("nvml_resumed")
    assert (event["device"], event["severity"]) == ("gpu:2", "info")
    reader.read()
    assert len(reader.events_of("nvml_stalled")) == len(reader.events_of("nvml_resumed")) == 1


def test_hang_costs_other_sources_nothing(gpus: Gpus) -> None:
    """While NVML hangs, the loop's reading has the other sources' rows, and the source itself did not time out."""
    context = Context(AgentConfig())
    everything = AllSources(loop.open_worker(context, name) for name in ("host", "gpu"))
    now, limit = 1_700_000_000 * SECOND, time.monotonic() + 60
    tables = set[str]()
    while "gpu" not in tables and time.monotonic() < limit:
        now += SECOND
        tables = {sample.table for sample in loop.read_once(everything, now, "m31", 20.0).samples}
        time.sleep(0.1)
    gpus.hang()
    for _ in range(12):
        now += SECOND
        samples = loop.read_once(everything, now, "m31", 20.0).samples
        assert [sample.table for sample in samples].count("host") == 1
        events_of = {str(sample.values["source"]): sample.values for sample in samples if sample.table == "source"}
        assert events_of["gpu"]["success"] == 1.0
    assert events_of["nvml"]["success"] == 0.0
    gpus.hang(False)
    everything.close()


def test_a_clock_set_forward_is_no_hang(reader: Reader) -> None:
    """An hour between two readings reports no fault."""
    for seconds in (3600, 1, -7200, 1, 1):
        reader.read(seconds)
    reader.until(lambda: len(reader.rows) == 3)
    assert not reader.events_of("nvml_stalled")


def test_a_clock_set_back_hides_no_hang(reader: Reader) -> None:
    """What hangs while the clock is set back by an hour is reported as soon as at any other time."""
    reader.gpus.set(2, hang=1)
    reader.patient = False
    reader.read()
    reader.read(-3600.0)
    for _ in range(10):
        reader.read()
    assert [event["device"] for event in reader.events_of("nvml_stalled")] == ["gpu:2"]
    reader.gpus.set(2, hang=0)


def test_a_child_that_dies_is_started_again(reader: Reader) -> None:
    """It is counted, said once, and readings come back."""
    os.kill(reader.child, 9)
    reader.until(lambda: reader.events_of("nvml_gone"))
    reader.until(lambda: reader.events_of("nvml_back"))
    assert len(reader.until(lambda: reader.rows)) == 3
    assert reader.health["failures_total"] == 1
    assert "has ended" in reader.events_of("nvml_gone")[0]["message"]


class Stuck:
    """A child in an uninterruptible call: it says nothing, and does not die."""

    def __init__(self, _: list[str]) -> None:
        self.where, self.killed, self.dead = 255, False, False

    def answer(self, patience_s: float) -> dict[str, Any] | None:
        """Nothing, ever."""
        return None

    def kill(self) -> None:
        """No use."""
        self.killed = True

    def ended(self, patience_s: float = 0.0) -> bool:
        """Once the driver lets go."""
        return self.dead


def test_a_child_that_cannot_be_killed_is_left_behind(gpus: Gpus) -> None:
    """Another one is tried, but no third while two hang; when one has ended, the next is started."""
    started = list[Stuck]()

    def start(paths: list[str]) -> Child:
        started.append(Stuck(paths))
        return started[-1]  # type: ignore[return-value]

    watch, now = Watch(Path("/"), 0.0, start), 0
    for _ in range(2000):
        now += SECOND
        assert watch.read(now, False) == []
    assert len(started) == 2
    assert all(child.killed for child in started)
    assert watch.stalled
    assert "2 children hang in the driver" in watch.error
    started[0].dead = True
    for _ in range(70):
        now += SECOND
        watch.read(now, False)
    assert len(started) == 3


def test_a_gpu_off_the_bus_without_any_xid(reader: Reader) -> None:
    """It is an event of its own, its rows stop, the others go on; when it is back, that is said too."""
    reader.gpus.set(1, error=GPU_IS_LOST)
    assert set(reader.read()) == {"0", "2"}
    (event,) = reader.events_of("gpu_lost")
    assert (event["device"], event["severity"]) == ("gpu:1", "crit")
    assert event["message"] == "the GPU is lost: it has fallen off the bus, or cannot be reached otherwise"
    for _ in range(3):
        assert set(reader.read()) == {"0", "2"}
    assert len(reader.events_of("gpu_lost")) == 1
    reader.gpus.set(1, error=0)
    assert set(reader.read(10)) == {"0", "1", "2"}
    assert [event["device"] for event in reader.events_of("gpu_back")] == ["gpu:1"]


def test_activity_is_missing_after_a_fault_and_not_zero(reader: Reader) -> None:
    """Where GPM gives no sample, or no number, there is no share."""
    assert reader.rows["1"]["tensor_active_ratio"] == FIELDS["tensor_active_ratio"]
    reader.gpus.fail(1, "nvmlGpmMetricsGet", 10)
    assert "tensor_active_ratio" not in reader.read()["1"]
    reader.gpus.fail(1, "nvmlGpmMetricsGet", 0)
    assert reader.read()["1"]["tensor_active_ratio"] == FIELDS["tensor_active_ratio"]
    reader.gpus.set(1, tensor_active_ratio=float("nan"), sm_active_ratio=9e9)
    assert not {"tensor_active_ratio", "sm_active_ratio"} & set(reader.read()["1"])


def test_gpm_of_another_structure_version(gpus: Gpus) -> None:
    """A driver that refuses the binding's structure costs the shares of activity, and nothing else."""
    for index in range(3):
        gpus.fail(index, "nvmlGpmMetricsGet", 25)
    reader = Reader(gpus)
    for _ in range(3):
        rows = reader.until(lambda: reader.rows)
    assert "tensor_active_ratio" not in rows["1"]
    assert rows["1"]["power_watts"] == 611.5
    reader.source.close()


def test_rates_stand_in_for_missing_counters(gpus: Gpus) -> None:
    """Where no field counts bytes, what GPM saw flow is added up."""
    for field in (197, 198, 138, 139):
        gpus.fail(1, field)
    reader = Reader(gpus)
    reader.until(lambda: "pcie_receive_bytes_total" in reader.rows.get("1", {}))
    before = reader.rows["1"]["pcie_receive_bytes_total"]
    gpus.add(1, pcie_receive_bytes_total=3 << 30)
    time.sleep(0.5)  # the clocks of the samples and of the sum are read one after the other
    after = reader.read()["1"]["pcie_receive_bytes_total"]
    assert 2 << 30 < after - before < 4 << 30
    reader.source.close()


@pytest.mark.parametrize("error", [2, 3, 4, 7, 10, 13, 17, 20, 21, 23, 25, 26, 27, 29, 999])
def test_any_error_of_one_call_leaves_the_rest(reader: Reader, error: int) -> None:
    """A call that fails leaves out its columns, for as long as it fails."""
    reader.gpus.fail(1, "nvmlDeviceGetClockInfo", error)
    row = reader.read()["1"]
    assert "sm_clock_hertz" not in row
    assert row["power_watts"] == 611.5
    reader.gpus.fail(1, "nvmlDeviceGetClockInfo", 0)
    reader.gpus.fail(1, "nvmlDeviceGetFieldValues", error)
    row = reader.read()["1"]
    assert "power_watts" not in row
    assert row["sm_clock_hertz"] == 1.755e9
    reader.gpus.fail(1, "nvmlDeviceGetFieldValues", 0)
    assert reader.read()["1"]["power_watts"] == 611.5
    assert not reader.events_of("gpu_lost")


def test_a_gpu_without_a_serial_number_is_read(gpus: Gpus) -> None:
    """Boards for consumers have none: that column is empty, and all else is there."""
    gpus.fail(1, "nvmlDeviceGetSerial")
    reader = Reader(gpus)
    row = reader.until(lambda: reader.rows if "uuid" in reader.rows.get("1", {}) else None, seconds=4)["1"]
    assert (row["serial"], row["pci_address"]) == (None, "0000:2c:00.0")
    assert not reader.events_of("gpu_unread")
    reader.source.close()


@pytest.mark.parametrize("error", [2, 10, 17, 23, 999])
def test_a_gpu_that_cannot_be_opened_is_not_called_lost(gpus: Gpus, error: int) -> None:
    """It is a warning, and it is tried again; only the driver's own word reports a GPU as lost."""
    gpus.fail(1, "nvmlDeviceGetUUID", error)
    reader = Reader(gpus)
    assert set(reader.until(lambda: reader.rows)) == {"0", "2"}
    (event,) = reader.events_of("gpu_unread")
    assert (event["device"], event["severity"]) == ("gpu:1", "warn")
    gpus.fail(1, "nvmlDeviceGetUUID", 0)
    assert set(reader.until(lambda: reader.rows if len(reader.rows) == 3 else None, seconds=4)) == {"0", "1", "2"}
    assert len(reader.events_of("gpu_read")) == 1
    assert not reader.events_of("gpu_lost") + reader.events_of("gpu_back")
    reader.source.close()


def test_a_missing_function_is_done_without(gpus: Gpus) -> None:
    """An old library lacks newer calls: an older one stands in, or the column is left out."""
    for name in ("nvmlDeviceGetFieldValues", "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetCurrentClocksEventReasons"):
        gpus.fail(1, name, 13)
    gpus.fail(1, "nvmlGpmQueryDeviceSupport", 13)
    reader = Reader(gpus)
    row = reader.until(lambda: reader.rows)["1"]
    assert row["power_watts"] == 611.5
    assert row["memory_used_bytes"] == FIELDS["memory_used_bytes"] + FIELDS["memory_reserved_bytes"]
    assert row["throttle_reasons"] == FIELDS["throttle_reasons"]
    assert row["throttle_power_seconds_total"] == FIELDS["throttle_power_seconds_total"]
    assert "energy_joules_total" not in row
    reader.source.close()


def test_what_a_gpu_does_not_have_is_left_out(gpus: Gpus) -> None:
    """No NVLink, no ECC, no memory temperature: those columns are missing, not zero."""
    gpus.set(1, nvlink_links=0)
    for field in (3, 4, 5, 6, 82):
        gpus.fail(1, field, NOT_SUPPORTED)
    reader = Reader(gpus)
    row = reader.until(lambda: reader.rows)["1"]
    missing = {"nvlink_errors_total", "nvlink_links_up", "ecc_corrected_total", "memory_temperature_celsius"}
    assert not missing & set(row)
    assert row["pcie_replay_total"] == FIELDS["pcie_replay_total"]
    reader.source.close()


def test_mig_is_said(gpus: Gpus) -> None:
    """A GPU that is split is read as far as it goes, and that it is split is an event."""
    gpus.set(1, mig=1)
    gpus.fail(1, "nvmlDeviceGetUtilizationRates")
    reader = Reader(gpus)
    row = reader.until(lambda: reader.rows)["1"]
    assert "duty_cycle_ratio" not in row
    assert row["power_watts"] == 611.5
    assert [event["device"] for event in reader.events_of("mig")] == ["gpu:1"]
    reader.source.close()


def test_mig_instances_are_devices(gpus: Gpus) -> None:
    """Each instance of a split GPU has a row with memory, activity, its UUID and its parent's; new ones are found."""
    gpus.set(1, mig=2, memory_used_bytes=6_000_000_000, tensor_active_ratio=0.375)
    reader = Reader(gpus)
    rows = reader.until(lambda: "tensor_active_ratio" in reader.rows.get("1/2", {}) and reader.rows)
    assert [name for name in rows if "/" in name] == ["1/1", "1/2"]
    part, whole = rows["1/2"], gpus.identity(1)[0]
    assert (part["memory_used_bytes"], part["tensor_active_ratio"]) == (3_000_000_000, 0.375)
    assert str(part["uuid"]).startswith("MIG-")
    assert part["uuid"] != rows["1/1"]["uuid"]
    assert part["parent_uuid"] == whole
    assert "power_watts" not in part  # one board, one power
    assert rows["1"]["power_watts"] == 611.5
    assert reader.events_of("mig")[0]["message"] == "it is split by MIG; its instances: 1, 2"
    gpus.set(1, mig=3)
    reader.until(lambda: "1/3" in reader.rows, 4.0)
    assert reader.rows["1/3"]["memory_used_bytes"] == 2_000_000_000
    gpus.set(1, mig=0)
    reader.until(lambda: "tensor_active_ratio" in reader.rows["1"], 4.0)
    assert not any("/" in name for name in reader.rows)
    reader.source.close()


def test_mig_is_switched_under_way(gpus: Gpus) -> None:
    """A GPU that is whole again has all columns again, and one that is split is said to be."""
    gpus.set(1, mig=1)
    gpus.fail(1, "nvmlDeviceGetUtilizationRates")
    reader = Reader(gpus)
    assert "duty_cycle_ratio" not in reader.until(lambda: reader.rows)["1"]
    gpus.set(1, mig=0)
    gpus.set(2, mig=1)
    gpus.fail(1, "nvmlDeviceGetUtilizationRates", 0)
    reader.until(lambda: reader.rows.get("1", {}).get("sm_active_ratio"), 4.0)
    assert reader.rows["1"]["duty_cycle_ratio"] == 0.97
    assert [event["device"] for event in reader.events_of("mig")] == ["gpu:1", "gpu:2"]
    assert reader.events_of("gpu_lost") == []
    reader.source.close()


def test_the_driver_is_loaded_again(reader: Reader) -> None:
    """That it went and came is said, and readings go on."""
    reader.gpus.unload_driver()
    reader.until(lambda: reader.events_of("nvml_gone"))
    assert reader.events_of("nvml_gone")[0]["severity"] == "warn"
    for _ in range(3):
        assert not reader.read(30)
    assert reader.health["error"] == "NVML says: Driver Not Loaded"
    reader.gpus.load_driver()
    reader.until(lambda: reader.rows, seconds=5)
    assert len(reader.events_of("nvml_gone")) == len(reader.events_of("nvml_back")) == 1
    assert not reader.events_of("gpu_lost")
    assert not reader.events_of("nvml_stalled")


def test_numbers_do_not_move_when_a_gpu_is_gone(reader: Reader) -> None:
    """After a reload without the second GPU, the third keeps its number; the second is lost until it is found."""
    reader.gpus.set(1, absent=1)
    reader.gpus.set(2, power_watts=513.5)
    reader.gpus.load_driver()
    reader.until(lambda: set(reader.rows) == {"0", "2"}, seconds=5)
    assert reader.rows["2"]["power_watts"] == 513.5
    assert [event["device"] for event in reader.events_of("gpu_lost")] == ["gpu:1"]
    reader.gpus.set(1, absent=0)
    reader.gpus.load_driver()
    reader.until(lambda: set(reader.rows) == {"0", "1", "2"}, seconds=5)
    assert reader.rows["1"]["power_watts"] == 611.5
    assert [event["device"] for event in reader.events_of("gpu_back")] == ["gpu:1"]


def test_a_library_that_comes_late(
    gpus: Gpus, emulated: Libraries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a library there is no child and no row, and none of it is an error; when it comes, it is found."""
    folder = tmp_path / "late"
    folder.mkdir()
    monkeypatch.setattr(watchdog, "find_library", lambda *_: [str(at) for at in folder.glob("*.so.1")])
    reader = Reader(gpus)
    for _ in range(3):
        assert not reader.read()
        assert not reader.events
        assert reader.health == {}
    (folder / NAME).symlink_to(emulated.nvml)
    assert len(reader.until(lambda: reader.rows, seconds=10)) == 3
    assert reader.events_of("driver")[0]["message"] == "driver 580.95.05 with 3 GPUs"
    reader.source.close()


def test_a_library_in_a_driver_container_is_found(tmp_path: Path) -> None:
    """The loader's folders come first, then what a driver container or an image for clouds has."""
    places = ["mine", "usr/lib/x86_64-linux-gnu", "usr/local/nvidia/lib64", "run/nvidia/driver/usr/lib64"]
    for place in places:
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / NAME).write_bytes(b"")
    (tmp_path / "empty").mkdir()
    environment = {"LD_LIBRARY_PATH": f"{tmp_path}/empty:relative::{tmp_path}/mine"}
    found = [path for path in find_library(tmp_path, environment) if path.startswith(str(tmp_path))]
    assert found == [str(tmp_path / place / NAME) for place in places]


def test_a_library_that_cannot_be_loaded_is_passed_over(
    gpus: Gpus, emulated: Libraries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of another architecture is passed over."""
    (tmp_path / NAME).write_bytes(b"\x7fELF\x01 not for this machine")
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{tmp_path}:{emulated.folder}")
    reader = Reader(gpus)
    assert len(reader.until(lambda: reader.rows)) == 3
    reader.source.close()


def test_a_library_that_is_broken_is_named(gpus: Gpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the only library cannot be loaded, the reason says which and why; it is no event and no stall."""
    (tmp_path / NAME).write_text("an interrupted download")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setattr(watchdog, "find_library", lambda *_: [str(tmp_path / NAME)])
    reader = Reader(gpus)
    reader.until(lambda: reader.health)
    assert reader.health["success"] == 0.0
    assert f"cannot be loaded: {tmp_path / NAME}" in str(reader.health["error"])
    assert not reader.events
    reader.source.close()


def test_xid_is_an_event_and_no_gauge_that_sticks(reader: Reader) -> None:
    """It is reported once, with the driver's severity, and the next readings say nothing of it."""
    reader.gpus.xid(2, 79)
    (event,) = reader.until(lambda: reader.events_of("xid:79"))
    assert (event["source"], event["device"], event["severity"]) == ("gpu", "gpu:2", "crit")
    for _ in range(3):
        reader.read()
    assert len(reader.events_of("xid:79")) == 1


def test_xid_noise_is_no_fault(reader: Reader) -> None:
    """What a program causes is information, and the clean-up after another Xid is not reported at all."""
    reader.gpus.xid(0, 31)
    reader.gpus.xid(0, 45)
    reader.gpus.xid(1, 13)
    reader.until(lambda: reader.events_of("xid:31") and reader.events_of("xid:13"))
    assert {event["severity"] for event in reader.events_of("xid:31") + reader.events_of("xid:13")} == {"info"}
    assert not reader.events_of("xid:45")


def test_a_bare_code_does_not_contradict_the_kernel_log(reader: Reader) -> None:
    """Errors of NVLink may be harmless by the driver's text, which NVML does not give; the old code 74 never is."""
    reader.gpus.xid(0, 145)
    reader.gpus.xid(1, 74)
    reader.until(lambda: reader.events_of("xid:145") and reader.events_of("xid:74"))
    assert [event["severity"] for event in reader.events_of("xid:145") + reader.events_of("xid:74")] == ["warn", "crit"]


def test_a_storm_of_one_xid_is_two_rows(reader: Reader) -> None:
    """The first is reported at once, the others as a number."""
    for _ in range(40):
        reader.gpus.xid(1, 95)
    reader.until(lambda: any(entry.again == 39 for entry in reader.source._repeats._entries.values()), seconds=0.01)
    assert len(reader.events_of("xid:95")) == 1
    reader.read(61)
    (_, again) = reader.events_of("xid:95")
    assert "39 more times" in again["message"]


def test_other_events_of_the_driver(reader: Reader) -> None:
    """Double-bit errors and failed remapping are hard facts under codes of their own."""
    reader.gpus.event(0, 0x2, 0)
    reader.gpus.event(2, 0x800, 0)
    reader.until(lambda: reader.events_of("ecc:uncorrected") and reader.events_of("remap:failed"))
    assert reader.events_of("ecc:uncorrected")[0]["device"] == "gpu:0"
    assert reader.events_of("remap:failed")[0]["device"] == "gpu:2"


def test_events_of_a_gpu_that_came_back(reader: Reader) -> None:
    """A GPU that is opened again has its events read again."""
    reader.gpus.set(1, error=GPU_IS_LOST)
    reader.read()
    reader.gpus.set(1, error=0)
    reader.read(10)
    limit = time.monotonic() + 60
    while not reader.events_of("xid:48") and time.monotonic() < limit:
        reader.gpus.xid(1, 48)
        reader.read(0.2)
        time.sleep(0.1)
    assert reader.events_of("xid:48")[0]["device"] == "gpu:1"


def test_a_process_is_placed_where_it_computes(gpus: Gpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank is on the GPU that NVML sees it on; several GPUs, or none, say nothing."""
    reader = Reader(gpus)
    placed = dict[int, str]()
    monkeypatch.setattr(reader.context.training, "place", placed.update)
    mine, other = os.getpid(), os.getppid()
    gpus.processes(2, {mine: 5, other: 7})
    gpus.processes(0, {other: 9})
    reader.until(lambda: reader.rows)
    assert placed == {mine: "2"}
    reader.source.close()


def test_numbers_of_another_namespace_are_not_believed(gpus: Gpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one of the driver's process numbers names no process here, the others may name another process."""
    reader = Reader(gpus)
    placed = dict[int, str]()
    monkeypatch.setattr(reader.context.training, "place", placed.update)
    gpus.processes(2, {os.getpid(): 5, 2**22 + 7: 7})
    reader.until(lambda: reader.rows)
    assert placed == {}
    reader.source.close()


def test_the_driver_knows_better_than_a_launcher() -> None:
    """In a container with some of the GPUs the launcher counts from 0; who does not train is not taken in."""
    training = Context(AgentConfig()).training
    training._known = {11: TrainingProcess(Process(11, 101), "0"), 13: TrainingProcess(Process(13, 103), "1")}
    training.place({11: "5", 17: "7"})
    assert {pid: trainer.gpu for pid, trainer in training._known.items()} == {11: "5", 13: "1"}


@pytest.mark.bpf
def test_rows_move_with_a_process_that_is_placed_later(watch: Any, caller: Any, emulated: Libraries) -> None:
    """What was counted goes on under the GPU that the driver reports."""
    seen = watch(sources=("probe", "nccl", "cuda"))
    process = caller(emulated.cudart, emulated.nccl, calls=7, mix="ncclAllReduce=6,cudaStreamSynchronize=1")
    seen.wait_attached(emulated.nccl)
    process.call()
    seen.until(lambda rows: any(r["pid"] == process.pid and r["counted_from"] for r in rows.get("nccl", ())))
    seen.context.training.place({process.pid: "5"})
    rows = seen.until(lambda rows: all(any(row["gpu"] == "5" for row in rows.get(t, ())) for t in TABLES) and rows)
    for table in TABLES:
        assert [row["gpu"] for row in rows[table] if row["pid"] == process.pid] == ["5"]
    (row,) = (row for row in rows["nccl"] if row["pid"] == process.pid)
    assert (row["slot"], row["operations_total"]) == ("0", 6)


def test_the_child_is_light(reader: Reader) -> None:
    """It holds neither numpy nor the agent's probes, and stays below 20 MB however often it is asked."""
    maps = Path(f"/proc/{reader.child}/maps").read_text()
    assert "libnvidia-ml.so.1" in maps
    assert not any(word in maps for word in ("numpy", "libbpf", "libbcc", "psutil"))

    def resident() -> int:
        words = Path(f"/proc/{reader.child}/status").read_text().split()
        return int(words[words.index("VmRSS:") + 1])

    for at in range(100):
        reader.read(at % 11)
    before = resident()
    for at in range(300):
        reader.read(at % 11)
    assert resident() < min(before + 512, 20_000)


def test_the_child_ends_with_its_parent(reader: Reader) -> None:
    """Closing the source leaves no process behind."""
    pid = reader.child
    reader.source.close()
    assert not Path(f"/proc/{pid}").exists()


def test_the_child_ends_with_an_agent_that_is_killed(gpus: Gpus) -> None:
    """Also while a call of it hangs: nothing of a killed agent is left behind."""
    script = (
        "import sys, time; sys.path[:0] = [sys.argv[1]]\n"
        "from agent.sources.gpu import open_source\nfrom agent.context import Context\n"
        "from agent.config import AgentConfig\nsource = open_source(Context(AgentConfig()))\n"
        "while not any(sample.table == 'gpu' for sample in source.read(time.time_ns())): time.sleep(0.05)\n"
        "print(source._watch._child.pid, flush=True)\n"
        "while True: source.read(time.time_ns()); time.sleep(0.05)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(ROOT)], stdout=subprocess.PIPE, text=True) as agent:
        assert agent.stdout is not None
        pid = int(agent.stdout.readline())
        gpus.hang()
        agent.kill()
    limit = time.monotonic() + 60
    while Path(f"/proc/{pid}/cmdline").exists() and time.monotonic() < limit:
        if not Path(f"/proc/{pid}/cmdline").read_bytes():  # a zombie that its parent has not waited for yet
            break
        time.sleep(0.02)
    else:
        assert not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize(
    ("says", "reason"),
    [
        ("print('no word of JSON')", "gives an answer that is none"),
        ("print('[1, 2]')", "gives an answer that is none"),
        ("sys.stdout.buffer.write(bytes([0xff, 0xfe, 10]))", "gives an answer that is none"),
        ("sys.stdout.write('x' * (1 << 21))", "gives an answer without an end"),
        ("sys.exit(3)", "has ended with 3"),
        ("pass", "has ended"),
    ],
)
def test_a_child_that_talks_nonsense(monkeypatch: pytest.MonkeyPatch, says: str, reason: str) -> None:
    """What cannot be understood ends the child, and nothing else."""
    monkeypatch.setattr(client, "_program", lambda: f"import sys; {says}")
    child = Child([])
    with pytest.raises(ChildError, match=reason):
        child.answer(60.0)
    child.kill()
    assert child.ended(60.0)


@given(st.binary(max_size=300))
def test_any_loader_cache_can_be_searched(text: bytes) -> None:
    """Whatever stands in it, only absolute paths of the library come out."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(text + b"/opt/x/libnvidia-ml.so.1\0" + text)
        file.flush()
        found = library_path._cached(Path(file.name), NAME)
    assert all(path.startswith("/") and path.endswith(f"/{NAME}") for path in found)
    assert any(path.endswith(f"/opt/x/{NAME}") for path in found)
    assert library_path._cached(Path("/no/such/cache"), NAME) == []


def test_without_the_binding_it_is_said(gpus: Gpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nvidia-ml-py is missing the reason and its mend are the source's health."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    reader = Reader(gpus)
    reader.read()
    assert reader.health["error"] == f"nvidia-ml-py is not installed: {sys.executable} -m pip install nvidia-ml-py"
    with pytest.raises(ChildError):
        Child([])


@given(st.lists(st.tuples(st.sampled_from(["a", "b", "c", "d", "e"]), st.booleans()), max_size=8))
def test_names_are_unique_and_stable(loads: list[tuple[str, bool]]) -> None:
    """Whatever comes and goes from load to load, no two GPUs share a name and none changes its own."""
    names, stable, here = GpuNames(), dict[str, str](), list[str]()
    for uuid, there in loads:
        here = sorted({*here, uuid} if there else set(here) - {uuid})
        missing = names.learn(dict(enumerate(here)))
        now = {at: names.name(index) for index, at in enumerate(here)}
        assert len(set(now.values())) == len(here)
        assert not set(missing) & set(now.values())
        for at, name in now.items():
            if at in stable and stable[at] not in {n for u, n in stable.items() if u != at}:
                assert name == stable[at]
        stable |= {at: name for at, name in now.items() if name is not None}


def test_a_fact_is_said_when_it_begins_and_ends() -> None:
    """In between only once an hour, for those who came late."""
    facts = GpuConditions()
    assert len(facts.begin(0, "gpu_lost", "gpu:1", "gone")) == 1
    assert facts.begin(AGAIN_NS - 1, "gpu_lost", "gpu:1", "gone") == []
    assert len(facts.begin(AGAIN_NS, "gpu_lost", "gpu:1", "gone")) == 1
    assert facts.end("gpu_lost", "gpu_back", "there", frozenset({"gpu:1"})) == []
    (event,) = facts.end("gpu_lost", "gpu_back", "there")
    assert (event.code, event.device) == ("gpu_back", "gpu:1")
    assert facts.end("gpu_lost", "gpu_back", "there") == []


def test_rules_of_fields() -> None:
    """The first rule that the GPU has is taken, links are added up, and a failed part leaves out its column."""
    rules = (Rule("x", 2, ((7, 0), (8, 0))), Rule("x", 3, ((9, 0),)), Rule("y", 5, ((1, 0xFFFFFFFE),)))
    wide = spread(rules, 3)
    assert wide[2].fields == ((1, 0), (1, 1), (1, 2))
    chosen = choose(wide, frozenset({(8, 0), (9, 0), (1, 0), (1, 2)}))
    assert chosen == (Rule("x", 2, ((8, 0),)), Rule("y", 5, ((1, 0), (1, 2))))
    plan = places(chosen, ((8, 0), (1, 0), (1, 2)))
    assert columns(plan, (11, 13, 17)) == {"x": 22, "y": 150}
    assert columns(plan, (11, None, 17)) == columns(plan, (11, 13, None)) == {"x": 22}


def test_every_column_of_the_rules_is_in_the_catalogue() -> None:
    """No rule fills a column that the catalogue does not know."""
    for rule in (*FAST, *SLOW):
        assert f"gpu.{rule.column}" in METRICS


def test_stall_leaves_time_for_the_verdict() -> None:
    """A hang is to be a verdict within 15 s: the watchdog leaves the detector a few of them."""
    assert STALL_NS <= 10 * SECOND
    assert isinstance(open_source(Context(AgentConfig())), Gpu)
