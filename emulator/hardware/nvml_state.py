"""The GPUs of an emulated machine as the emulated libnvidia-ml tells them: one file, mapped by both sides (gpus.h).

gpus = Gpus(folder / "gpus", create=8)          # the agent and its children get EMULATED_GPUS=<that path>
gpus.set(3, power_watts=412.5, tensor_active_ratio=0.41)
gpus.add(3, energy_joules_total=206.2, pcie_receive_bytes_total=1_700_000)
gpus.xid(3, 79)
gpus.set(3, error=GPU_IS_LOST)
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Mapping
from pathlib import Path

GPUS = 16
_FAILING, _PROCESSES, _EVENTS = 24, 16, 64
_MAGIC = 0x3173757067776570

UNINITIALIZED, NOT_SUPPORTED, DRIVER_NOT_LOADED, GPU_IS_LOST = 1, 3, 9, 15
XID = 8
"""Bit of an Xid among NVML's types of events."""

FUNCTIONS = (
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetName",
    "nvmlDeviceGetPciInfo_v3",
    "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetTemperature",
    "nvmlDeviceGetClockInfo",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetCurrPcieLinkGeneration",
    "nvmlDeviceGetCurrPcieLinkWidth",
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetCurrentClocksThrottleReasons",
    "nvmlDeviceGetViolationStatus",
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceRegisterEvents",
    "nvmlDeviceGetSupportedEventTypes",
    "nvmlGpmQueryDeviceSupport",
    "nvmlGpmSampleGet",
    "nvmlGpmMetricsGet",
    "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetIndex",
    "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetSerial",
)
"""What can be made to fail, in the order of `enum function` (nvml_device.h)."""
_FUNCTION_BASE = 1000

GAUGES = (
    "duty_cycle_ratio",
    "power_watts",
    "power_limit_watts",
    "temperature_celsius",
    "memory_temperature_celsius",
    "sm_clock_hertz",
    "memory_clock_hertz",
    "graphics_active_ratio",
    "sm_active_ratio",
    "sm_occupancy_ratio",
    "tensor_active_ratio",
    "dram_active_ratio",
    "fp64_active_ratio",
    "fp32_active_ratio",
    "fp16_active_ratio",
    "throttle_power_seconds_total",
    "throttle_thermal_seconds_total",
    "power_brake_seconds_total",
    "energy_joules_total",
)
"""Floating-point fields."""

COUNTS = (
    "memory_total_bytes",
    "memory_used_bytes",
    "memory_reserved_bytes",
    "pcie_transmit_bytes_total",
    "pcie_receive_bytes_total",
    "nvlink_transmit_bytes_total",
    "nvlink_receive_bytes_total",
    "pcie_generation",
    "pcie_width",
    "pcie_replay_total",
    "pcie_correctable_errors_total",
    "pcie_fatal_errors_total",
    "nvlink_crc_errors_total",
    "nvlink_replays_total",
    "nvlink_recoveries_total",
    "nvlink_links",
    "nvlink_links_up",
    "ecc_corrected_total",
    "ecc_uncorrected_total",
    "ecc_corrected_lifetime_total",
    "ecc_uncorrected_lifetime_total",
    "remapped_rows_corrected",
    "remapped_rows_uncorrected",
    "remap_pending",
    "remap_failed",
    "recovery_action",
    "throttle_reasons",
    "mig",
    "gpm",
)
"""Whole-number fields. `gpm` is 0 or 1, `mig` the number of MIG instances; `throttle_reasons` is NVML's bit mask."""

HEALTHY: Mapping[str, float | int] = {
    "power_watts": 96.0,
    "power_limit_watts": 700.0,
    "temperature_celsius": 34.0,
    "memory_temperature_celsius": 43.0,
    "sm_clock_hertz": 1.98e9,
    "memory_clock_hertz": 2.619e9,
    "memory_total_bytes": 85_520_809_984,
    "memory_reserved_bytes": 555_679_744,
    "memory_used_bytes": 4_194_304,
    "pcie_generation": 5,
    "pcie_width": 16,
    "nvlink_links": 18,
    "nvlink_links_up": 18,
    "throttle_reasons": 1,
    "gpm": 1,
}
"""An idle GPU; what is not named is 0."""


class _Failing(ctypes.Structure):
    _fields_ = (("what", ctypes.c_uint32), ("error", ctypes.c_uint32))


class _Process(ctypes.Structure):
    _fields_ = (("pid", ctypes.c_uint32), ("filler", ctypes.c_uint32), ("memory_bytes", ctypes.c_uint64))


class _Event(ctypes.Structure):
    _fields_ = (("type", ctypes.c_uint64), ("data", ctypes.c_uint64))


class _Gpu(ctypes.Structure):
    _fields_ = (
        ("absent", ctypes.c_uint32),
        ("hang", ctypes.c_uint32),
        ("error", ctypes.c_uint32),
        ("processes", ctypes.c_uint32),
        ("uuid", ctypes.c_char * 96),
        ("name", ctypes.c_char * 96),
        ("bus_id", ctypes.c_char * 32),
        ("serial", ctypes.c_char * 32),
        *((name, ctypes.c_double) for name in GAUGES),
        *((name, ctypes.c_uint64) for name in COUNTS),
        ("events_written", ctypes.c_uint64),
        ("failing", _Failing * _FAILING),
        ("process", _Process * _PROCESSES),
        ("event", _Event * _EVENTS),
    )


SWITCH_FIELDS = (
    "temperature_celsius",
    "reset_required",
    "links_up",
    "fatal_sxid",
    "nonfatal_sxid",
    "fatal_errors",
    "nonfatal_errors",
    "replays",
    "recoveries",
    "crc_errors",
    "ecc_errors",
)
"""Fields of an NVSwitch; errors are of each of its links."""
SWITCHES, SWITCH_LINKS = 8, 3


class _Switch(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in SWITCH_FIELDS)


class _File(ctypes.Structure):
    _fields_ = (
        ("magic", ctypes.c_uint64),
        ("size", ctypes.c_uint32),
        ("count", ctypes.c_uint32),
        ("driver_error", ctypes.c_uint32),
        ("loads", ctypes.c_uint32),
        ("hang", ctypes.c_uint32),
        ("filler", ctypes.c_uint32),
        ("driver_version", ctypes.c_char * 80),
        ("gpu", _Gpu * GPUS),
        ("dcgm_starts", ctypes.c_uint32),
        ("dcgm_version", ctypes.c_uint32),
        ("dcgm_hang", ctypes.c_uint32),
        ("profiling_error", ctypes.c_uint32),
        ("switches", ctypes.c_uint32),
        ("more_filler", ctypes.c_uint32),
        ("nvswitch", _Switch * SWITCHES),
    )


_SETTABLE = frozenset((*GAUGES, *COUNTS, "absent", "hang", "error"))


class GpusError(ValueError):
    """The file is missing or of another layout, or a field or GPU is not there; the message names it."""


class Gpus:
    """The mapped file; `create` makes a fresh one of that many healthy, idle GPUs. Raises GpusError."""

    _file: _File

    def __init__(self, path: Path, create: int = 0) -> None:
        if not 0 <= create <= GPUS:
            raise GpusError(f"an emulated machine has 1 to {GPUS} GPUs, not {create}")
        self.path, self._dcgm_starts = path, 0
        try:
            if create:
                with path.open("wb") as file:
                    file.truncate(ctypes.sizeof(_File))
            with path.open("r+b") as file:
                self._map = mmap.mmap(file.fileno(), ctypes.sizeof(_File))
        except (OSError, ValueError) as error:
            raise GpusError(f"can't map the GPU states {path}: {error}") from None
        self._file = _File.from_buffer(self._map)
        if create:
            self._make(create)
        elif (self._file.magic, self._file.size) != (_MAGIC, ctypes.sizeof(_Gpu)):
            self.close()
            raise GpusError(f"{path} holds no GPU states of this layout")

    def __len__(self) -> int:
        return int(self._file.count)

    def close(self) -> None:
        """Let go of the file."""
        del self._file, self._map

    def set(self, index: int, **values: float) -> None:
        """Write fields of one GPU (GAUGES, COUNTS, and these three).

        `hang`=1: its calls return no more; `error`: what all its calls give (GPU_IS_LOST); `absent`=1: the driver
        does not find it. Clear them with 0.
        """
        gpu = self._gpu(index)
        for name, value in values.items():
            if name not in _SETTABLE:
                raise GpusError(f"a GPU has no field {name}")
            setattr(gpu, name, value if name in GAUGES else int(value))

    def add(self, index: int, **increments: float) -> None:
        """Let counters of one GPU grow."""
        self.set(index, **{name: self.get(index, name) + grown for name, grown in increments.items()})

    def get(self, index: int, name: str) -> float:
        """One field of one GPU."""
        if name not in _SETTABLE:
            raise GpusError(f"a GPU has no field {name}")
        found: float = getattr(self._gpu(index), name)
        return found

    def identity(self, index: int) -> tuple[str, str, str]:
        """UUID, PCI bus id and serial number of one GPU."""
        gpu = self._gpu(index)
        return gpu.uuid.decode(), gpu.bus_id.decode(), gpu.serial.decode()

    def fail(self, index: int, what: str | int, error: int = NOT_SUPPORTED) -> None:
        """Make one function (FUNCTIONS) or field id of one GPU give this error; 0: no more."""
        number = what if isinstance(what, int) else _FUNCTION_BASE + FUNCTIONS.index(what)
        slots = self._gpu(index).failing
        slot = next((slot for slot in slots if slot.what == number), None) or next(s for s in slots if not s.what)
        slot.error = error
        slot.what = number if error else 0

    def processes(self, index: int, memory_bytes: Mapping[int, int]) -> None:
        """Say which processes compute on one GPU: process number -> memory in use."""
        gpu = self._gpu(index)
        gpu.processes = 0
        for slot, (pid, used) in zip(gpu.process, memory_bytes.items(), strict=False):
            slot.pid, slot.memory_bytes = pid, used
        gpu.processes = min(len(memory_bytes), _PROCESSES)

    def event(self, index: int, kind: int, data: int) -> None:
        """Let one GPU tell an event of NVML (a bit of its event types) to all who wait for it."""
        gpu = self._gpu(index)
        slot = gpu.event[gpu.events_written % _EVENTS]
        slot.type, slot.data = kind, data
        gpu.events_written += 1

    def xid(self, index: int, code: int) -> None:
        """Let one GPU tell an Xid."""
        self.event(index, XID, code)

    def hang(self, on: bool = True) -> None:
        """Let no call of any process return any more, until it is switched off."""
        self._file.hang = on

    def start_dcgm(self, version: int = 4, switches: int = 0, profiling_error: int = 0) -> None:
        """Start a host engine of DCGM (again: who was connected is no longer), with so many healthy NVSwitches."""
        file = self._file
        file.dcgm_version, file.switches, file.profiling_error = version, switches, profiling_error
        for switch in file.nvswitch[:switches]:
            switch.temperature_celsius, switch.links_up = 47, SWITCH_LINKS
        self._dcgm_starts += 1
        file.dcgm_starts = self._dcgm_starts

    def stop_dcgm(self) -> None:
        """Let no host engine run."""
        self._file.dcgm_starts = 0

    def hang_dcgm(self, on: bool = True) -> None:
        """Let no call of DCGM return any more, until it is switched off."""
        self._file.dcgm_hang = on

    def set_switch(self, index: int, **values: int) -> None:
        """Write fields of one NVSwitch (SWITCH_FIELDS)."""
        for name, value in values.items():
            setattr(self._file.nvswitch[index], name, value)

    def unload_driver(self, error: int = DRIVER_NOT_LOADED) -> None:
        """From now on initialising gives this error, and all else that the library is not initialised."""
        self._file.driver_error = error

    def load_driver(self) -> None:
        """Load the driver (again): a process that was initialised before has to initialise again."""
        self._file.loads += 1
        self._file.driver_error = 0

    def _make(self, count: int) -> None:
        file = self._file
        file.size, file.count, file.loads, file.driver_version = ctypes.sizeof(_Gpu), count, 1, b"580.95.05"
        for index in range(count):
            gpu = file.gpu[index]
            gpu.uuid = f"GPU-5eed0000-0000-4000-8000-{index:012x}".encode()
            gpu.name, gpu.bus_id = b"Emulated H100", f"00000000:{0x1B + 0x11 * index:02X}:00.0".encode()
            gpu.serial = f"16500230{index:05}".encode()
            self.set(index, **HEALTHY)
        file.magic = _MAGIC

    def _gpu(self, index: int) -> _Gpu:
        if not 0 <= index < self._file.count:
            raise GpusError(f"no GPU {index}: there are {self._file.count}")
        found: _Gpu = self._file.gpu[index]
        return found
