"""What an emulated GPU reads as: power, clocks, temperature, activity and counters, from its load and its fault.

The figures are those of an H100 SXM by its data sheet, and rough between them: what matters is that they follow the
load, differ a little from device to device, and bend as a real one's do under a fault.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

from emulator.hardware.gpu_load import NOTHING, Load

CLOCK, MEMORY_CLOCK = 1.98e9, 2.619e9
GENERATION, WIDTH = 5, 16
IDLE_W, COMPUTE_W, COLLECTIVE_W = 110.0, 470.0, 120.0
HOT, COOL = 87.0, 83.0  # where the clock is lowered and let go again
LAG_S = 3.0
BATCH_BYTES, RESULT_BYTES, TENSOR_BYTES = 2.5e8, 3e7, 4e9
IDLE, POWER_CAP, HARDWARE_SLOWDOWN, THERMAL = 0x1, 0x4, 0x8, 0x40  # nvmlClocksEventReasons
LOST = ("gpu_lost", "xid_79")


@dataclass(slots=True)
class Card:
    """The state of one GPU. SI units; shares from 0 to 1."""

    spread: float
    """This device's factor, within 2 % of 1."""
    neighbours: bool
    """Whether the machine has other GPUs, to which NVLink leads."""
    load: Load = NOTHING
    lost: bool = False
    power: float = IDLE_W
    temperature: float = 36.0
    clock: float = CLOCK
    memory_used: float = 6e8
    reasons: int = 0
    hot: bool = False
    generation: int = GENERATION
    width: int = WIDTH
    power_seconds: float = 0.0
    thermal_seconds: float = 0.0
    energy: float = 0.0
    pcie_in: float = 0.0
    pcie_out: float = 0.0
    nvlink: float = 0.0

    @classmethod
    def of(cls, seed: int, rank: int, neighbours: bool) -> Card:
        """The card of a rank: equal arguments give equal cards."""
        return cls(random.Random(seed * 1009 + rank).uniform(0.985, 1.015), neighbours)

    def advance(self, load: Load, fault: str, amount: float, seconds: float) -> None:
        """Let time pass under a load and a fault."""
        if fault == "background_compute":
            load = replace(load, compute=max(load.compute, 1 - load.collective - load.copy))
        self.load, self.lost = load, fault in LOST
        if self.lost:
            return
        self._throttle(fault, amount, seconds)
        self._link(fault, amount)
        drawn = IDLE_W + COMPUTE_W * load.compute * self.clock / CLOCK + COLLECTIVE_W * load.collective
        self.power = drawn * self.spread
        self._heat(fault, seconds)
        self.memory_used = (6.4e10 if load.held else 6e8) * self.spread
        self.energy += self.power * seconds
        self.pcie_in += BATCH_BYTES * load.rate * seconds
        self.pcie_out += RESULT_BYTES * load.rate * seconds
        self.nvlink += TENSOR_BYTES * load.rate * seconds * self.neighbours

    @property
    def throttle(self) -> float:
        """The factor on kernel time that the heat causes at the moment; power caps are the fleet's own order."""
        return CLOCK * self.spread / self.clock if self.reasons & THERMAL else 1.0

    def readings(self) -> dict[str, float]:
        """What NVML gives, by column of the table `gpu` and by field of nvml_layout.py; counts are whole."""
        load, spread = self.load, self.spread
        shares = {
            "duty_cycle_ratio": load.busy,
            "graphics_active_ratio": load.busy * 0.98,
            "sm_active_ratio": load.compute * 0.86 + load.collective * 0.08,
            "sm_occupancy_ratio": load.compute * 0.31 + load.collective * 0.02,
            "tensor_active_ratio": load.compute * 0.52,
            "dram_active_ratio": load.compute * 0.44 + load.collective * 0.05,
            "fp64_active_ratio": 0.0,
            "fp32_active_ratio": load.compute * 0.07,
            "fp16_active_ratio": load.compute * 0.03,
        }
        bytes_ = {
            "memory_used_bytes": self.memory_used,
            "pcie_transmit_bytes_total": self.pcie_out,
            "pcie_receive_bytes_total": self.pcie_in,
            "nvlink_transmit_bytes_total": self.nvlink,
            "nvlink_receive_bytes_total": self.nvlink,
        }
        return (
            {name: min(share * spread, 1.0) for name, share in shares.items()}
            | {name: int(number) for name, number in bytes_.items()}
            | {
                "power_watts": self.power,
                "temperature_celsius": self.temperature,
                "memory_temperature_celsius": self.temperature + 9,
                "sm_clock_hertz": self.clock,
                "memory_clock_hertz": MEMORY_CLOCK,
                "throttle_power_seconds_total": self.power_seconds,
                "throttle_thermal_seconds_total": self.thermal_seconds,
                "throttle_reasons": self.reasons,
                "energy_joules_total": self.energy,
                "pcie_generation": self.generation,
                "pcie_width": self.width,
            }
        )

    def _throttle(self, fault: str, amount: float, seconds: float) -> None:
        self.reasons, self.clock = 0 if self.load.busy else IDLE, CLOCK * self.spread
        if fault == "power_cap":
            self.reasons, self.clock = POWER_CAP, self.clock / amount
            self.power_seconds += seconds * self.load.busy
        elif fault == "thermal_throttle" and self.hot:
            self.reasons, self.clock = THERMAL | HARDWARE_SLOWDOWN, self.clock / amount
            self.thermal_seconds += seconds

    def _link(self, fault: str, amount: float) -> None:
        """Half of the speed goes with the generation, the rest with lanes."""
        self.generation, self.width = GENERATION, WIDTH
        if fault == "pcie_downgrade":
            self.generation, self.width = GENERATION - 1, max(1, int(WIDTH / (amount / 2)))

    def _heat(self, fault: str, seconds: float) -> None:
        """Towards where power and cooling meet: with a broken fan the GPU gets hot, and cools slowly when slower."""
        aim, lag = (28.0 + 0.07 * self.power) * self.spread, LAG_S
        if fault == "thermal_throttle":
            aim, lag = (81.5, 10.0) if self.hot else (105.0, LAG_S)
        self.temperature += (aim - self.temperature) * (1 - math.exp(-seconds / lag))
        self.hot = self.temperature > (COOL if self.hot else HOT)
