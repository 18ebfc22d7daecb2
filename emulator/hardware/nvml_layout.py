"""The file of an emulated machine's GPUs, as `state.h` of the emulated libnvidia-ml has it: names, fields, order."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

GPUS = 16
FAILING, PROCESSES, EVENTS = 24, 16, 64
MAGIC = 0x3173757067776570

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
"""What can be made to fail, in the order of `enum function` (nvml/device.h)."""
FUNCTION_BASE = 1000

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


class Failing(ctypes.Structure):
    """A call or a field that gives an error."""

    _fields_ = (("what", ctypes.c_uint32), ("error", ctypes.c_uint32))


class Process(ctypes.Structure):
    """A process that computes on a GPU."""

    _fields_ = (("pid", ctypes.c_uint32), ("filler", ctypes.c_uint32), ("memory_bytes", ctypes.c_uint64))


class Event(ctypes.Structure):
    """An event of a GPU: a bit of NVML's types, and what belongs to it."""

    _fields_ = (("type", ctypes.c_uint64), ("data", ctypes.c_uint64))


class GpuState(ctypes.Structure):
    """What one GPU shows."""

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
        ("failing", Failing * FAILING),
        ("process", Process * PROCESSES),
        ("event", Event * EVENTS),
    )


SWITCH_FIELDS = (
    *("temperature_celsius", "reset_required", "links_up", "fatal_sxid", "nonfatal_sxid", "fatal_errors"),
    *("nonfatal_errors", "replays", "recoveries", "crc_errors", "ecc_errors"),
)
"""Fields of an NVSwitch; errors are of each of its links."""
SWITCHES, SWITCH_LINKS = 8, 3


class SwitchState(ctypes.Structure):
    """What one NVSwitch shows."""

    _fields_ = tuple((name, ctypes.c_uint64) for name in SWITCH_FIELDS)


class File(ctypes.Structure):
    """The whole file."""

    _fields_ = (
        ("magic", ctypes.c_uint64),
        ("size", ctypes.c_uint32),
        ("count", ctypes.c_uint32),
        ("driver_error", ctypes.c_uint32),
        ("loads", ctypes.c_uint32),
        ("hang", ctypes.c_uint32),
        ("filler", ctypes.c_uint32),
        ("driver_version", ctypes.c_char * 80),
        ("gpu", GpuState * GPUS),
        ("dcgm_starts", ctypes.c_uint32),
        ("dcgm_version", ctypes.c_uint32),
        ("dcgm_hang", ctypes.c_uint32),
        ("profiling_error", ctypes.c_uint32),
        ("switches", ctypes.c_uint32),
        ("more_filler", ctypes.c_uint32),
        ("nvswitch", SwitchState * SWITCHES),
    )


SETTABLE = frozenset((*GAUGES, *COUNTS, "absent", "hang", "error"))
"""What `Gpus.set` writes."""
