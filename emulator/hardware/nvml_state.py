"""The GPUs of an emulated machine as the emulated libnvidia-ml tells them: one mapped file (nvml_layout.py).

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

from emulator.hardware.nvml_layout import (
    DRIVER_NOT_LOADED,
    EVENTS,
    FUNCTION_BASE,
    FUNCTIONS,
    GAUGES,
    GPUS,
    HEALTHY,
    MAGIC,
    NOT_SUPPORTED,
    PROCESSES,
    SETTABLE,
    SWITCH_LINKS,
    XID,
    File,
    GpuState,
)


class GpusError(ValueError):
    """The file is missing or of another layout, or a field or GPU is not there; the message names it."""


class Gpus:
    """The mapped file; `create` makes a fresh one of that many healthy, idle GPUs. Raises GpusError."""

    _file: File

    def __init__(self, path: Path, create: int = 0) -> None:
        if not 0 <= create <= GPUS:
            raise GpusError(f"an emulated machine has 1 to {GPUS} GPUs, not {create}")
        self.path, self._dcgm_starts = path, 0
        try:
            if create:
                with path.open("wb") as file:
                    file.truncate(ctypes.sizeof(File))
            with path.open("r+b") as file:
                self._map = mmap.mmap(file.fileno(), ctypes.sizeof(File))
        except (OSError, ValueError) as error:
            raise GpusError(f"can't map the GPU states {path}: {error}") from None
        self._file = File.from_buffer(self._map)
        if create:
            self._make(create)
        elif (self._file.magic, self._file.size) != (MAGIC, ctypes.sizeof(GpuState)):
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
            if name not in SETTABLE:
                raise GpusError(f"a GPU has no field {name}")
            setattr(gpu, name, value if name in GAUGES else int(value))

    def add(self, index: int, **increments: float) -> None:
        """Let counters of one GPU grow."""
        self.set(index, **{name: self.get(index, name) + grown for name, grown in increments.items()})

    def get(self, index: int, name: str) -> float:
        """One field of one GPU."""
        if name not in SETTABLE:
            raise GpusError(f"a GPU has no field {name}")
        found: float = getattr(self._gpu(index), name)
        return found

    def identity(self, index: int) -> tuple[str, str, str]:
        """UUID, PCI bus id and serial number of one GPU."""
        gpu = self._gpu(index)
        return gpu.uuid.decode(), gpu.bus_id.decode(), gpu.serial.decode()

    def fail(self, index: int, what: str | int, error: int = NOT_SUPPORTED) -> None:
        """Make one function (FUNCTIONS) or field id of one GPU give this error; 0: no more."""
        number = what if isinstance(what, int) else FUNCTION_BASE + FUNCTIONS.index(what)
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
        gpu.processes = min(len(memory_bytes), PROCESSES)

    def event(self, index: int, kind: int, data: int) -> None:
        """Let one GPU tell an event of NVML (a bit of its event types) to all who wait for it."""
        gpu = self._gpu(index)
        slot = gpu.event[gpu.events_written % EVENTS]
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
        file.size, file.count, file.loads, file.driver_version = ctypes.sizeof(GpuState), count, 1, b"580.95.05"
        for index in range(count):
            gpu = file.gpu[index]
            gpu.uuid = f"GPU-5eed0000-0000-4000-8000-{index:012x}".encode()
            gpu.name, gpu.bus_id = b"Emulated H100", f"00000000:{0x1B + 0x11 * index:02X}:00.0".encode()
            gpu.serial = f"16500230{index:05}".encode()
            self.set(index, **HEALTHY)
        file.magic = MAGIC

    def _gpu(self, index: int) -> GpuState:
        if not 0 <= index < self._file.count:
            raise GpusError(f"no GPU {index}: there are {self._file.count}")
        found: GpuState = self._file.gpu[index]
        return found
