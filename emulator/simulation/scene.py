"""Where something harmless goes on, and what it may do to readings there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from emulator.simulation.fleet_model import START, Fleet, Mask, Place, Slow, name_of
from store.schema.time import SECOND


@dataclass(frozen=True, slots=True)
class Scene:
    """Where and when something harmless goes on."""

    fleet: Fleet
    rng: np.random.Generator
    on: Mask
    who: int | None
    """None: all machines."""
    gpu: int | None

    def place(self, whole: bool = False) -> Place:
        """The device, or the machine as a whole."""
        return Place(self.on, self.who, None if whole else self.gpu)

    def add(self, key: str, least: float, most: float) -> None:
        """Let a reading be larger by an amount that is drawn; counters by their rate."""
        self.fleet.bend(key, self.place(key.startswith("host")), "+", float(self.rng.uniform(least, most)))

    def times(self, key: str, least: float, most: float) -> None:
        """Let a reading be a multiple that is drawn."""
        self.fleet.bend(key, self.place(key.startswith("host")), "*", float(self.rng.uniform(least, most)))

    def be(self, key: str, value: float) -> None:
        """Let a reading have a value."""
        self.fleet.bend(key, self.place(key.startswith("host")), "=", value)

    def late(self, least: float, most: float, host: bool = True) -> None:
        """Let somebody need longer for an iteration."""
        self.fleet.slows.append(Slow(self.place(host), float(self.rng.uniform(least, most)), host))

    def say(self, code: str, message: str) -> None:
        """A line in the kernel's log, at the beginning."""
        at = START + int((self.fleet.seconds[self.on][0] + 0.5) * SECOND)
        device = f"gpu:{self.gpu}"
        self.fleet.events.append((at, name_of(self.who or 0), "kernel_log", code, "warn", message, device))


@dataclass(frozen=True, slots=True)
class Kind:
    """One harmless thing: how often, where, how long (s)."""

    acts: tuple[Callable[[Scene], None], ...]
    """What it does, in order."""
    scope: str
    """`device`, `machine`, `rack`, `rail` (one port of every machine) or `task`."""
    rate: float
    """A machine and hour; of `rack`, `rail` and `task` an hour; of what lasts for good the chance of a recording."""
    least_s: float
    most_s: float
    """0: for good."""
