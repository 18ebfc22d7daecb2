"""The emulated libnvidia-ml, called as everybody calls the real one: through nvidia-ml-py."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest
from elftools.elf.elffile import ELFFile

from emulator.hardware import nvml_layout as layout
from emulator.hardware.nvml_layout import COUNTS, FUNCTIONS, GAUGES, GPU_IS_LOST
from emulator.hardware.nvml_state import Gpus, GpusError
from emulator.libraries.build import Libraries

NUMBERS = {name: 0.11 + 0.031 * at for at, name in enumerate(GAUGES)} | {
    name: 7_000_003 + 4096 * at for at, name in enumerate(COUNTS)
}
"""A different one for each field."""
SCALED = {"power_watts": 611.5, "sm_clock_hertz": 1.755e9, "memory_clock_hertz": 2.619e9, "temperature_celsius": 61.0}


@pytest.fixture(scope="module")
def path(libraries: Libraries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The file that the library maps when it is first initialised, and the library loaded under its name."""
    file = tmp_path_factory.mktemp("gpus") / "gpus"
    ctypes.CDLL(str(libraries.nvml))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EMULATED_GPUS", str(file))
        yield file


@pytest.fixture
def gpus(path: Path) -> Iterator[Gpus]:
    """Three GPUs, of which the second has a different number in each field; NVML is initialised."""
    made = Gpus(path, create=3)
    made.set(1, **NUMBERS | SCALED | {"mig": 0, "gpm": 1, "nvlink_links": 18})
    pynvml.nvmlInit()
    yield made
    made.load_driver()
    made.close()


def handle(index: int = 1) -> Any:
    """NVML's handle of a GPU."""
    return pynvml.nvmlDeviceGetHandleByIndex(index)


def code(call: Callable[[], object]) -> int:
    """The return code of a call."""
    try:
        call()
    except pynvml.NVMLError as error:
        return int(error.value)
    return 0


def test_layouts_of_both_sides_agree(libraries: Libraries) -> None:
    """Each member of the C structures lies where gpus.py writes it."""
    with libraries.nvml.open("rb") as file:
        units = list(ELFFile(file).get_dwarf_info().iter_CUs())
        for name, mine in (("gpu", layout.GpuState), ("gpus", layout.File)):
            entries = (entry for unit in units for entry in unit.iter_DIEs() if entry.tag == "DW_TAG_structure_type")
            found = next(e for e in entries if (at := e.attributes.get("DW_AT_name")) and at.value == name.encode())
            members = {
                child.attributes["DW_AT_name"].value.decode(): child.attributes["DW_AT_data_member_location"].value
                for child in found.iter_children()
            }
            assert members == {field: getattr(mine, field).offset for field, _ in mine._fields_}
            assert found.attributes["DW_AT_byte_size"].value == ctypes.sizeof(mine)


def test_identity(gpus: Gpus) -> None:
    """GPUs are numbered in the file's order and say who they are."""
    assert pynvml.nvmlDeviceGetCount() == 3 == len(gpus)
    uuid, bus_id, serial = gpus.identity(1)
    assert pynvml.nvmlDeviceGetUUID(handle()) == uuid
    assert pynvml.nvmlDeviceGetSerial(handle()) == serial
    assert pynvml.nvmlDeviceGetPciInfo(handle()).busId == bus_id
    assert pynvml.nvmlDeviceGetName(handle()) == "Emulated H100"
    assert pynvml.nvmlDeviceGetIndex(handle()) == 1
    assert pynvml.nvmlSystemGetDriverVersion() == "580.95.05"


def test_single_readings(gpus: Gpus) -> None:
    """Each call gives its own field in NVML's unit."""
    gpu = handle()
    assert pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu == round(NUMBERS["duty_cycle_ratio"] * 100)
    assert pynvml.nvmlDeviceGetTemperature(gpu, pynvml.NVML_TEMPERATURE_GPU) == 61
    assert pynvml.nvmlDeviceGetPowerUsage(gpu) == 611_500
    assert pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM) == 1755
    assert pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_MEM) == 2619
    used, reserved = NUMBERS["memory_used_bytes"], NUMBERS["memory_reserved_bytes"]
    assert pynvml.nvmlDeviceGetMemoryInfo(gpu).used == used + reserved
    assert pynvml.nvmlDeviceGetMemoryInfo(gpu, pynvml.nvmlMemory_v2).used == used
    assert pynvml.nvmlDeviceGetCurrPcieLinkWidth(gpu) == NUMBERS["pcie_width"]
    assert pynvml.nvmlDeviceGetCurrentClocksEventReasons(gpu) == NUMBERS["throttle_reasons"]
    power = pynvml.nvmlDeviceGetViolationStatus(gpu, pynvml.NVML_PERF_POLICY_POWER)
    assert power.violationTime == round(NUMBERS["throttle_power_seconds_total"] * 1e9)


def test_fields_have_codes_of_their_own(gpus: Gpus) -> None:
    """In one call a field gives its value, another that it is not supported, a third what it was made to give."""
    gpus.fail(1, pynvml.NVML_FI_DEV_PCIE_REPLAY_COUNTER, pynvml.NVML_ERROR_TIMEOUT)
    wanted = [
        pynvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL,
        4001,
        pynvml.NVML_FI_DEV_PCIE_REPLAY_COUNTER,
        (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, 0xFFFFFFFF),
        (pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_CRC, 17),
        (pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_CRC, 18),
    ]
    found = pynvml.nvmlDeviceGetFieldValues(handle(), wanted)
    assert [value.nvmlReturn for value in found] == [0, 3, 10, 0, 0, 2]
    assert found[0].value.ullVal == NUMBERS["ecc_uncorrected_total"]
    assert found[3].value.ullVal == NUMBERS["nvlink_transmit_bytes_total"] // 1024


@pytest.mark.parametrize("error", [2, 3, 4, 9, 10, 13, 15, 16, 23, 999])
def test_any_call_can_fail_with_any_error(gpus: Gpus, error: int) -> None:
    """A function set to fail fails for that GPU alone, until it is reset."""
    gpus.fail(1, "nvmlDeviceGetName", error)
    assert code(lambda: pynvml.nvmlDeviceGetName(handle(1))) == error
    assert code(lambda: pynvml.nvmlDeviceGetName(handle(2))) == 0
    gpus.fail(1, "nvmlDeviceGetName", 0)
    assert code(lambda: pynvml.nvmlDeviceGetName(handle(1))) == 0


def test_every_function_of_the_list_is_there(gpus: Gpus) -> None:
    """What gpus.py says can fail is a function of the library."""
    for name in FUNCTIONS:
        assert getattr(pynvml.nvmlLib, name)


def test_a_lost_gpu(gpus: Gpus) -> None:
    """All calls on it say so, and the others go on."""
    gpu = handle()
    gpus.set(1, error=GPU_IS_LOST)
    assert code(lambda: pynvml.nvmlDeviceGetTemperature(gpu, 0)) == GPU_IS_LOST
    assert code(lambda: handle(1)) == GPU_IS_LOST
    assert pynvml.nvmlDeviceGetCount() == 3
    assert code(lambda: handle(2)) == 0


def test_a_gpu_that_the_driver_does_not_find(gpus: Gpus) -> None:
    """Those behind it move up."""
    third = gpus.identity(2)[0]
    gpus.set(1, absent=1)
    assert pynvml.nvmlDeviceGetCount() == 2
    assert pynvml.nvmlDeviceGetUUID(handle(1)) == third
    assert pynvml.nvmlDeviceGetIndex(handle(1)) == 1


def test_the_driver_goes_and_comes(gpus: Gpus) -> None:
    """Without it nothing can be initialised; after it was loaded again, a process has to initialise again."""
    gpu = handle()
    gpus.unload_driver()
    assert code(lambda: pynvml.nvmlDeviceGetName(gpu)) == pynvml.NVML_ERROR_UNINITIALIZED
    assert code(pynvml.nvmlInit) == pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    gpus.load_driver()
    assert code(pynvml.nvmlDeviceGetCount) == pynvml.NVML_ERROR_UNINITIALIZED
    pynvml.nvmlInit()
    assert pynvml.nvmlDeviceGetName(handle())


def test_gpm_compares_two_samples(gpus: Gpus) -> None:
    """Shares come from the later one, rates from both; samples in the wrong order are refused."""
    gpu, before, after = handle(), pynvml.nvmlGpmSampleAlloc(), pynvml.nvmlGpmSampleAlloc()
    pynvml.nvmlGpmSampleGet(gpu, before)
    gpus.set(1, tensor_active_ratio=0.37)
    gpus.add(1, nvlink_transmit_bytes_total=2**33)
    pynvml.nvmlGpmSampleGet(gpu, after)
    request = pynvml.c_nvmlGpmMetricsGet_t()
    request.version, request.numMetrics = pynvml.NVML_GPM_METRICS_GET_VERSION, 3
    request.sample1, request.sample2 = before, after
    for at, metric in enumerate((5, 61, 30)):
        request.metrics[at].metricId = metric
    pynvml.nvmlGpmMetricsGet(request)
    assert request.metrics[0].value == pytest.approx(37.0)
    assert request.metrics[1].value > 0
    assert request.metrics[2].nvmlReturn == pynvml.NVML_ERROR_NOT_SUPPORTED
    request.sample1, request.sample2 = after, before
    assert code(lambda: pynvml.nvmlGpmMetricsGet(request)) == pynvml.NVML_ERROR_INVALID_ARGUMENT
    request.version = 2
    assert code(lambda: pynvml.nvmlGpmMetricsGet(request)) == pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH
    for sample in (before, after):
        pynvml.nvmlGpmSampleFree(sample)


def test_events_reach_those_who_registered(gpus: Gpus) -> None:
    """Only what happened since, of the types and GPUs asked for, in order; then the wait times out."""
    gpus.xid(1, 13)
    events = pynvml.nvmlEventSetCreate()
    pynvml.nvmlDeviceRegisterEvents(handle(1), pynvml.nvmlEventTypeXidCriticalError, events)
    gpus.event(1, pynvml.nvmlEventTypeDoubleBitEccError, 0)
    gpus.xid(2, 74)
    gpus.xid(1, 79)
    gpus.xid(1, 45)
    found = [pynvml.nvmlEventSetWait_v2(events, 0) for _ in range(2)]
    assert [(event.eventData, pynvml.nvmlDeviceGetIndex(event.device)) for event in found] == [(79, 1), (45, 1)]
    assert code(lambda: pynvml.nvmlEventSetWait_v2(events, 0)) == pynvml.NVML_ERROR_TIMEOUT
    for number in range(100):
        gpus.xid(1, 500 + number)
    assert pynvml.nvmlEventSetWait_v2(events, 0).eventData == 536
    pynvml.nvmlEventSetFree(events)


def test_processes(gpus: Gpus) -> None:
    """Numbers and memory of those who compute on a GPU."""
    gpus.processes(1, {4711: 3_000, 815: 5_000})
    found = pynvml.nvmlDeviceGetComputeRunningProcesses(handle())
    assert {process.pid: process.usedGpuMemory for process in found} == {4711: 3_000, 815: 5_000}
    assert pynvml.nvmlDeviceGetComputeRunningProcesses(handle(2)) == []


def test_a_call_that_hangs(gpus: Gpus) -> None:
    """It returns when the hang is over, and not before; other GPUs answer in the meantime."""
    gpu, names = handle(), list[str]()
    gpus.set(1, hang=1)
    caller = threading.Thread(target=lambda: names.append(pynvml.nvmlDeviceGetName(gpu)))
    caller.start()
    assert pynvml.nvmlDeviceGetName(handle(2))
    assert not names
    gpus.set(1, hang=0)
    caller.join(60)
    assert names == ["Emulated H100"]


def test_what_cannot_be_meant_is_named(tmp_path: Path, gpus: Gpus) -> None:
    """Unknown fields, GPUs and files are one line each."""
    for call, words in (
        (lambda: gpus.set(1, power=3), "no field power"),
        (lambda: gpus.get(7, "power_watts"), "no GPU 7: there are 3"),
        (lambda: Gpus(tmp_path / "none"), "can't map the GPU states"),
        (lambda: Gpus(tmp_path / "many", create=17), "1 to 16 GPUs, not 17"),
    ):
        with pytest.raises(GpusError, match=words):
            call()
    (tmp_path / "other").write_bytes(bytes(1 << 20))
    with pytest.raises(GpusError, match="no GPU states of this layout"):
        Gpus(tmp_path / "other")
