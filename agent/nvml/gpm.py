"""GPM: what the units of a GPU did between two samples (Hopper and later), without a profiler and beside any other.

Samples are taken and compared by one thread only: from several, the library has been seen to crash.
"""

from __future__ import annotations

import ctypes
import math
from struct import Struct
from typing import Any

from agent.nvml.binding import NOT_HERE, NvmlError, nvml

_RATIOS = {
    1: "graphics_active_ratio",
    2: "sm_active_ratio",
    3: "sm_occupancy_ratio",
    5: "tensor_active_ratio",
    10: "dram_active_ratio",
    11: "fp64_active_ratio",
    12: "fp32_active_ratio",
    13: "fp16_active_ratio",
}
_RATES = {
    20: "pcie_transmit_bytes_total",
    21: "pcie_receive_bytes_total",
    60: "nvlink_receive_bytes_total",
    61: "nvlink_transmit_bytes_total",
}
"""MiB a second."""
_METRICS = (*_RATIOS, *_RATES)
_ANSWER = Struct("<Iid24x")  # nvmlGpmMetric_t: id, return, value, three pointers to names
_SANE_RATIO, _SANE_RATE = 1.5, 1e8


class Gpm:
    """The last sample of one GPU, or of one MIG instance of it, and what has flowed since it was opened.

    Raises NvmlError where there is no GPM.
    """

    def __init__(self, handle: Any, instance: int | None = None) -> None:
        self._handle, self._instance = handle, instance
        if not nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
            raise NvmlError(nvml.NVML_ERROR_NOT_SUPPORTED)
        self._before, self._after = nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()
        self._taken: float | None = None
        # The driver reads the metrics that are asked for, whatever the length that this binding gives the array.
        memory = bytearray(ctypes.sizeof(nvml.c_nvmlGpmMetricsGet_t))
        self._request = nvml.c_nvmlGpmMetricsGet_t.from_buffer(memory)
        first = nvml.c_nvmlGpmMetricsGet_t.metrics.offset
        self._answers = memoryview(memory)[first : first + _ANSWER.size * len(_METRICS)]
        self._request.version, self._request.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, len(_METRICS)
        for metric, number in zip(self._request.metrics, _METRICS, strict=False):
            metric.metricId = number
        self._flowed: dict[str, float] = dict.fromkeys(_RATES.values(), 0.0)

    def read(self, seconds: float) -> dict[str, float]:
        """Shares and byte counts since the last reading, at a time (seconds of any steady clock). Raises NvmlError."""
        before, self._taken = self._taken, None
        if self._instance is None:
            nvml.nvmlGpmSampleGet(self._handle, self._after)
        else:
            nvml.nvmlGpmMigSampleGet(self._handle, self._instance, self._after)
        self._taken = seconds
        self._before, self._after = self._after, self._before
        if before is None or seconds <= before:
            return {}
        request = self._request
        request.sample1, request.sample2 = self._after, self._before
        nvml.nvmlGpmMetricsGet(request)
        return self._columns(seconds - before)

    def _columns(self, seconds: float) -> dict[str, float]:
        """What was given for a metric that the GPU does not have, or is no number, is left out."""
        found: dict[str, float] = {}
        for number, code, value in _ANSWER.iter_unpack(self._answers):
            if code or not math.isfinite(value):
                continue
            if number in _RATIOS and 0 <= value / 100 <= _SANE_RATIO:
                found[_RATIOS[number]] = min(value / 100, 1.0)
            elif number in _RATES and 0 <= value <= _SANE_RATE:
                self._flowed[_RATES[number]] += value * 2**20 * seconds
                found[_RATES[number]] = int(self._flowed[_RATES[number]])
        return found


def open_gpm(handle: Any, instance: int | None = None) -> Gpm | None:
    """None where this GPU, this driver or this library has no GPM. Raises NvmlError for any other reason."""
    try:
        return Gpm(handle, instance)
    except NvmlError as error:
        if error.value in NOT_HERE:
            return None
        raise
