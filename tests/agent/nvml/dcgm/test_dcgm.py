"""The source dcgm on the emulated libdcgm, which has NVIDIA's structures: health, switches, activity, and what fails.

The real library was not at hand.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.config import AgentConfig
from agent.context import Context, SourceUnavailableError
from agent.nvml.dcgm import binding, client
from agent.nvml.dcgm.client import Client
from agent.sampling import loop
from agent.sampling.reader import Reader, Worker
from agent.sources.dcgm import Dcgm, open_source
from emulator.hardware.nvml_state import Gpus
from emulator.libraries.build import Libraries
from store.schema.sample import Sample

_PROFILING_NOT_SUPPORTED = 36


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpus]:
    """Three GPUs; DCGM counts them from the last one on."""
    made = Gpus(tmp_path / "gpus", create=3)
    monkeypatch.setenv("EMULATED_GPUS", str(made.path))
    yield made
    made.close()


@pytest.fixture
def opened(emulated: Libraries) -> Iterator[Callable[..., Dcgm]]:
    """The source on the emulated library, read five times a second."""
    made: list[Dcgm] = []

    def make(activity: bool = True) -> Dcgm:
        made.append(Dcgm(Client([str(emulated.dcgm)], 0.2, activity)))
        return made[-1]

    yield make
    for source in made:
        source.close()


def until(source: Dcgm, holds: Callable[[list[Sample]], bool]) -> list[Sample]:
    """Read on until this is true of one reading; what the child refuses is tried again."""
    limit, found, error = time.monotonic() + 120, list[Sample](), ""
    while time.monotonic() < limit:
        try:
            found = source.read(time.time_ns())
        except OSError as refused:
            error = str(refused)
        if holds(found):
            return found
        time.sleep(0.05)
    raise AssertionError((found, error))


def of(samples: list[Sample], table: str, name: str) -> dict[str, object]:
    """The row of one GPU or switch."""
    keys = {"gpu": "gpu", "nvswitch": "switch"}
    rows = [dict(one.values) for one in samples if one.table == table and one.values[keys[table]] == name]
    return rows[-1] if rows else {}


def events(samples: list[Sample]) -> list[tuple[object, ...]]:
    """Code, device and severity of each event."""
    return [
        (one.values["code"], one.values["device"], one.values["severity"]) for one in samples if one.table == "event"
    ]


def test_structures_have_the_sizes_of_nvidias_headers() -> None:
    """The version that DCGM checks is the structure's size, which is that of dcgm_structs.h on x86-64."""
    sizes = [ctypes.sizeof(one) for one in (binding._Connect, binding._HealthSet, binding._Incident, binding._Value)]
    assert sizes == [16, 40, 1044, 4128]
    assert [ctypes.sizeof(one) for one, _ in binding._RESPONSES] == [12 + 1024 * 1044, 12 + 64 * 1044]


@pytest.mark.parametrize("version", [3, 4])
def test_health_of_gpus_and_switches(gpus: Gpus, opened: Callable[..., Dcgm], version: int) -> None:
    """What a check finds is a mask in the row of NVML's index and an event with DCGM's words; a passed one is a 0."""
    gpus.start_dcgm(version, switches=2)
    source = opened()
    found = until(source, lambda samples: of(samples, "gpu", "2").get("health_failures") == 0.0)
    assert events(found) == []
    gpus.set(2, ecc_uncorrected_total=5, nvlink_links_up=17)
    gpus.set(0, throttle_thermal_seconds_total=3.5)
    gpus.set_switch(1, fatal_sxid=12028, nonfatal_sxid=11012)
    seen: list[Sample] = []
    found = until(source, lambda samples: bool(seen.extend(samples) or len(events(seen)) >= 5))
    assert set(events(seen)) == {
        ("health:memory", "gpu:2", "crit"),
        ("health:nvlink", "gpu:2", "crit"),
        ("health:thermal", "gpu:0", "warn"),
        ("health:nvswitch", "nvswitch:1", "crit"),
        ("health:nvswitch", "nvswitch:1", "warn"),
    }
    words = [str(one.values["message"]) for one in seen if one.values.get("code") == "health:memory"]
    assert words == ["DCGM: Detected 5 volatile double-bit ECC error(s) in GPU 0."]  # DCGM's own number
    assert of(found, "gpu", "2")["health_failures"] == 0x12
    assert of(found, "nvswitch", "1")["health_failures"] == 0x800
    assert of(found, "nvswitch", "0")["health_failures"] == 0


def test_switches(gpus: Gpus, opened: Callable[..., Dcgm]) -> None:
    """A switch's row has its SXids and temperature, and sums over its links; an SXid of a GPU's reset is none."""
    gpus.start_dcgm(switches=2)
    gpus.set_switch(0, crc_errors=7, replays=2, links_up=2, temperature_celsius=61, reset_required=1)
    gpus.set_switch(1, fatal_sxid=20034, nonfatal_sxid=11012, fatal_errors=4)
    found = until(opened(activity=False), lambda samples: "fatal_sxid" in of(samples, "nvswitch", "1"))
    first, second = of(found, "nvswitch", "0"), of(found, "nvswitch", "1")
    assert (first["link_crc_errors_total"], first["link_replays_total"]) == (21, 6)
    assert (first["links_up"], first["temperature_celsius"], first["reset_required"]) == (2, 61, 1)
    assert (second["fatal_sxid"], second["nonfatal_sxid"], second["fatal_errors_total"]) == (0, 11012, 12)


def test_activity_goes_by_nvmls_index(gpus: Gpus, opened: Callable[..., Dcgm]) -> None:
    """The ratios are of NVML's GPU, whatever number DCGM gives it; what is no ratio is left out."""
    gpus.start_dcgm()
    gpus.set(0, tensor_active_ratio=0.41, dram_active_ratio=7.0)
    found = until(opened(), lambda samples: "tensor_active_ratio" in of(samples, "gpu", "2"))
    row = of(found, "gpu", "0")
    assert row["tensor_active_ratio"] == 0.41
    assert "dram_active_ratio" not in row
    assert of(found, "gpu", "1")["tensor_active_ratio"] == 0.0


def test_where_the_profiling_hardware_is_taken(gpus: Gpus, opened: Callable[..., Dcgm]) -> None:
    """Health is read without the activity of units, and an event says why; once."""
    gpus.start_dcgm(profiling_error=_PROFILING_NOT_SUPPORTED)
    source, seen = opened(), list[Sample]()
    until(source, lambda samples: bool(seen.extend(samples) or len(of(seen, "gpu", "1")) > 2))
    until(source, lambda samples: bool(seen.extend(samples) or of(samples, "gpu", "1").get("health_failures") == 0))
    assert events(seen) == [("dcgm_activity", "", "info")]
    assert "tensor_active_ratio" not in of(seen, "gpu", "1")


def test_no_host_engine_and_one_that_starts_again(gpus: Gpus, opened: Callable[..., Dcgm]) -> None:
    """Where none runs, DCGM's own words are the error; it is tried again, and once more after it has restarted."""
    source = opened()
    with pytest.raises(OSError, match="connection to the host engine"):
        until(source, lambda _: bool(source._client.error) and bool(source.read(time.time_ns())))
    for _ in range(2):
        gpus.start_dcgm()
        source._client._retry_at = 0.0
        until(source, lambda samples: "tensor_active_ratio" in of(samples, "gpu", "1"))
        gpus.stop_dcgm()
        with pytest.raises(AssertionError, match="connection to the host engine"):
            until_error(source)


def until_error(source: Dcgm) -> None:
    """Read on until the source fails."""
    limit = time.monotonic() + 60
    while time.monotonic() < limit:
        try:
            source.read(time.time_ns())
        except OSError as error:
            raise AssertionError(str(error)) from None
        time.sleep(0.05)


def test_a_call_that_hangs(gpus: Gpus, opened: Callable[..., Dcgm], monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that says nothing for long is ended and named; readings never wait for it."""
    gpus.start_dcgm()
    source = opened()
    until(source, lambda samples: "tensor_active_ratio" in of(samples, "gpu", "1"))
    gpus.hang_dcgm()
    monkeypatch.setattr(client, "STALL_S", 0.7)
    begun = time.monotonic()
    with pytest.raises(AssertionError, match="DCGM has not answered"):
        until_error(source)
    assert time.monotonic() - begun < 30
    assert source._client._child is None
    gpus.hang_dcgm(False)


@pytest.mark.parametrize("words", [b"[1]\n", b'{"gpus":[]}\n', b"\xff\n", b"[" * 9000 + b"\n"])
def test_what_is_no_answer(words: bytes, gpus: Gpus, opened: Callable[..., Dcgm]) -> None:
    """Lines that are none of the child's bring no rows and no exception but the source's own."""
    source = opened()
    source._client._take_in = lambda now_s: [one for one in [client._object(words)] if one is not None]  # type: ignore[method-assign]
    assert source.read(time.time_ns()) == []


def test_columns_join_the_row_of_nvml(gpus: Gpus, opened: Callable[..., Dcgm]) -> None:
    """NVML's row of a GPU and DCGM's columns are one row."""

    class Nvml:
        def read(self, now: int) -> list[Sample]:
            return [Sample("gpu", {"gpu": "1", "power_watts": 301.5})]

        def close(self) -> None:
            """Nothing."""

    gpus.start_dcgm()
    gpus.set(1, dram_active_ratio=0.288)
    source = opened()
    until(source, lambda samples: "dram_active_ratio" in of(samples, "gpu", "1"))
    reader = Reader([Worker("gpu", Nvml()), Worker("dcgm", source)])
    batch = loop.read_once(reader, time.time_ns(), "m7", 5.0)
    rows = {str(sample.values["gpu"]): sample.values for sample in batch.samples if sample.table == "gpu"}
    assert (rows["1"]["power_watts"], rows["1"]["dram_active_ratio"]) == (301.5, 0.288)
    reader.close()


def test_the_newest_library_comes_first(tmp_path: Path) -> None:
    """Libraries of the machine's own root are found, version 4 before 3."""
    for path in ("usr/lib64/libdcgm.so.3", "usr/lib/x86_64-linux-gnu/libdcgm.so.4"):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).touch()
    found = [path for path in client.find_dcgm(tmp_path) if path.startswith(str(tmp_path))]
    assert [path.rsplit(".", 1)[1] for path in found] == ["4", "3"]


def test_without_dcgm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where libdcgm is not installed the source says which package it is in."""
    monkeypatch.setattr("agent.sources.dcgm.find_dcgm", lambda root: [])
    with pytest.raises(SourceUnavailableError, match="datacenter-gpu-manager"):
        open_source(Context(AgentConfig()))
