"""Excursions: how high the evidence on a machine rises by a metric before it falls back to nothing."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import numpy as np

from detector.stats.arrays import Bools, Floats, Ints, grown


@dataclass(slots=True)
class Excursions:
    """Finished excursions; arrays are [excursion], times Unix ns."""

    stream: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    machine: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    peak: Floats = field(default_factory=lambda: np.zeros(0))
    """In multiples of the built-in threshold."""
    begun: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    ended: Ints = field(default_factory=lambda: np.zeros(0, np.int64))

    def __len__(self) -> int:
        return len(self.peak)

    def some(self, those: Bools | slice) -> Excursions:
        """Those of a mask, or of a part."""
        return Excursions(*(getattr(self, part.name)[those] for part in fields(self)))

    def and_also(self, other: Excursions) -> Excursions:
        """Both, these first."""
        return Excursions(*(np.append(getattr(self, part.name), getattr(other, part.name)) for part in fields(self)))


@dataclass(slots=True)
class Tracker:
    """Excursions under way; arrays are [stream, machine].

    Devices of one machine rise and fall together, so a machine's excursion is that of its farthest device.
    """

    height: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    """The highest so far; 0: there is none."""
    begun: Ints = field(default_factory=lambda: np.zeros((0, 0), np.int64))

    def note(self, now: int, stream: Ints, machine: Ints, height: Floats, shape: tuple[int, int]) -> Excursions:
        """Take in the evidence at `now`; the excursions that are over since the last step.

        `height` [cell] is in multiples of the built-in threshold, `shape` how many streams and machines there are.
        """
        if shape[1] < self.height.shape[1] and self.height[:, shape[1] :].any():
            raise ValueError("there are fewer machines than before: forget the excursions first")
        self.height, self.begun = grown(self.height, shape, 0.0), grown(self.begun, shape, 0)
        current = np.zeros(self.height.shape)
        np.maximum.at(current, (stream, machine), height)
        risen, high = current > 0, self.height > 0
        streams, machines = np.nonzero(high & ~risen)
        at = streams, machines
        done = Excursions(streams, machines, self.height[at], self.begun[at], np.full(len(streams), now))
        self.begun[risen & ~high] = now
        self.height = np.where(risen, np.maximum(self.height, current), 0.0)
        return done

    def forget(self) -> None:
        """Begin again without excursions, as when machines get other numbers."""
        self.height, self.begun = np.zeros((0, 0)), np.zeros((0, 0), np.int64)
