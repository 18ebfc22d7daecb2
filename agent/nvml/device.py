"""One GPU in NVML: its columns are found out once, and then read with few calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from agent.nvml.binding import GONE, LOST, NOT_HERE, PASSING, Fields, NvmlError, nvml
from agent.nvml.fields import FAST, SLOW, Rule, choose, columns, places, spread
from agent.nvml.gpm import open_gpm
from agent.nvml.mig import names_of, open_instances
from agent.system.pci import normal

Call = Callable[[Any], float]

_FATAL = GONE | LOST
_LINK_COUNT = 91
_MHZ = 1_000_000
_FAST_CALLS: tuple[tuple[str, Call], ...] = (
    ("duty_cycle_ratio", lambda gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100),
    ("temperature_celsius", lambda gpu: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU)),
    ("sm_clock_hertz", lambda gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM) * _MHZ),
    ("memory_clock_hertz", lambda gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM) * _MHZ),
    # The second version leaves out what the driver keeps for itself.
    ("memory_used_bytes", lambda gpu: nvml.nvmlDeviceGetMemoryInfo(gpu, nvml.nvmlMemory_v2).used),
    ("memory_used_bytes", lambda gpu: nvml.nvmlDeviceGetMemoryInfo(gpu).used),
    ("throttle_reasons", lambda gpu: nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu)),
    ("throttle_reasons", lambda gpu: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu)),
    ("power_watts", lambda gpu: nvml.nvmlDeviceGetPowerUsage(gpu) / 1000),
    ("throttle_power_seconds_total", lambda gpu: _violation(gpu, nvml.NVML_PERF_POLICY_POWER)),
    ("throttle_thermal_seconds_total", lambda gpu: _violation(gpu, nvml.NVML_PERF_POLICY_THERMAL)),
)
_SLOW_CALLS: tuple[tuple[str, Call], ...] = (
    ("pcie_generation", lambda gpu: nvml.nvmlDeviceGetCurrPcieLinkGeneration(gpu)),
    ("pcie_width", lambda gpu: nvml.nvmlDeviceGetCurrPcieLinkWidth(gpu)),
)
"""What fields do not tell, or not of every GPU; of several calls for a column the first that works is taken."""


def _violation(gpu: Any, policy: int) -> float:
    return float(nvml.nvmlDeviceGetViolationStatus(gpu, policy).violationTime) / 1e9


class Part:
    """One group of columns of a GPU, read together. Raises NvmlError when the GPU or the driver is gone."""

    def __init__(self, handle: Any, rules: Sequence[Rule], calls: Sequence[tuple[str, Call]]) -> None:
        self._handle = handle
        chosen = self._choose(rules)
        fields = tuple({field: None for rule in chosen for field in rule.fields})
        self._plan, self._fields = places(chosen, fields), Fields(handle, fields)
        columns = {rule.column for rule in chosen}
        self._calls: list[tuple[str, Call]] = []
        for column, call in calls:
            if column not in columns and self._has(call):
                self._calls.append((column, call))
                columns.add(column)
        self.columns = frozenset(columns)

    def read(self) -> dict[str, float]:
        """The columns; one is missing where its call fails this time."""
        try:
            found = columns(self._plan, self._fields.read())
        except NvmlError as error:
            _pass(error)
            found = {}
        for column, call in self._calls:
            try:
                found[column] = call(self._handle)
            except NvmlError as error:
                _pass(error)
        return found

    def _choose(self, rules: Sequence[Rule]) -> tuple[Rule, ...]:
        """A library that is too old for fields has none; any other failure is a reason to try again later."""
        wanted = tuple({field: None for rule in rules for field in rule.fields})
        fields = Fields(self._handle, wanted)
        try:
            fields.read()
        except NvmlError as error:
            if error.value in NOT_HERE:
                return ()
            raise
        here = (f for f, code in zip(wanted, fields.codes(), strict=True) if not code or code in PASSING)
        return choose(rules, frozenset(here))

    def _has(self, call: Call) -> bool:
        try:
            call(self._handle)
        except NvmlError as error:
            _pass(error)
            return error.value not in NOT_HERE
        return True


class Device:
    """One GPU. Raises NvmlError when it or the driver is gone."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.uuid = str(nvml.nvmlDeviceGetUUID(handle))
        self.serial = str(_or("", lambda: nvml.nvmlDeviceGetSerial(handle)))
        self.pci_address = normal(str(_or("", lambda: nvml.nvmlDeviceGetPciInfo(handle).busId)))
        self.mig = self._split(False)
        self._instances = open_instances(handle) if self.mig else []
        count = int(_or([0], Fields(handle, [(_LINK_COUNT, 0)]).read)[0] or 0)
        self._fast = Part(handle, spread(FAST, count), _FAST_CALLS)
        self._slow = Part(handle, spread(SLOW, count), _SLOW_CALLS)
        self._gpm = open_gpm(handle)

    def read(self, seconds: float, slow: bool) -> dict[str, float]:
        """All columns that the GPU has, at a time of a steady clock; what changes slowly only when asked for."""
        found = self._active(seconds)
        if slow:
            found |= self._slow.read()
            kinds = [found[name] for name in _NVLINK_ERRORS if name in found]
            if kinds:
                found["nvlink_errors_total"] = sum(kinds)
        return found | self._fast.read()

    @property
    def outdated(self) -> bool:
        """Whether MIG was switched since it was opened, for which newer GPUs need no reset, or split otherwise."""
        if self._split(self.mig) != self.mig:
            return True
        return self.mig and names_of(self.handle) != [instance.uuid for instance in self._instances]

    @property
    def instances(self) -> dict[str, str]:
        """Name and UUID of each MIG instance."""
        return {instance.name: instance.uuid for instance in self._instances}

    def read_instances(self, seconds: float) -> dict[str, dict[str, float]]:
        """The columns of each MIG instance by its name."""
        return {instance.name: instance.read(seconds) for instance in self._instances}

    def processes(self) -> list[int]:
        """The numbers of the processes that compute on it, in the driver's PID namespace."""
        listed = _or([], lambda: nvml.nvmlDeviceGetComputeRunningProcesses(self.handle))
        return [int(process.pid) for process in listed][:256]

    def _split(self, otherwise: bool) -> bool:
        return bool(_or([otherwise], lambda: nvml.nvmlDeviceGetMigMode(self.handle))[0])

    def _active(self, seconds: float) -> dict[str, float]:
        try:
            found = self._gpm.read(seconds) if self._gpm is not None else {}
        except NvmlError as error:
            _pass(error)
            if error.value in NOT_HERE:  # the structure or MIG: it will not come back
                self._gpm = None
            return {}
        # A counter comes from one place for good: the device's own is better than a sum of rates.
        return {column: value for column, value in found.items() if column not in self._fast.columns}


_NVLINK_ERRORS = ("nvlink_crc_errors_total", "nvlink_replays_total", "nvlink_recoveries_total")


def _or(default: Any, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except NvmlError as error:
        _pass(error)
        return default


def _pass(error: NvmlError) -> None:
    """Raise it if the GPU or the driver is gone; else it concerns one reading."""
    if error.value in _FATAL:
        raise error
