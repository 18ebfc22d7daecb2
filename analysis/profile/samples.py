"""Samples of what the main threads of all ranks were in, over one window: from files of py-spy, or from a store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from agent.stacks.sampled import Sampled, read_speedscope
from detector.stats.arrays import Ints


@dataclass(frozen=True, slots=True)
class Samples:
    """Samples of one window over all ranks, taken at even distances."""

    ranks: tuple[str, ...]
    functions: tuple[str, ...]
    """Such as `step (train.py)`."""
    classes: tuple[str, ...]
    """[function]"""
    seen: tuple[Ints, ...]
    """[rank][sample]: the function, in order of time."""
    seconds: float
    """Length of the window."""

    def by_class(self) -> Samples:
        """The same with classes for functions."""
        names = sorted(set(self.classes))
        number = np.array([names.index(one) for one in self.classes], np.int64)
        return Samples(self.ranks, (*names,), (*names,), tuple(number[one] for one in self.seen), self.seconds)


def read_samples(files: Mapping[str, Path]) -> Samples:
    """Samples of ranks, named by the keys, from a speedscope file each. Raises SampleError."""
    found = {name: read_speedscope(path) for name, path in files.items()}
    return samples_of(found.items(), max(one.seconds for one in found.values()))


def samples_of(found: Iterable[tuple[str, Sampled]], seconds: float) -> Samples:
    """Samples of ranks with one numbering of functions. Equal names are one function, of the class that came first."""
    numbers: dict[str, int] = {}
    classes: list[str] = []
    ranks, seen = [], []
    for rank, sampled in found:
        for kind, name in sampled.functions:
            if numbers.setdefault(name, len(numbers)) == len(classes):
                classes.append(kind)
        number = np.array([numbers[name] for _, name in sampled.functions], np.int64)
        ranks.append(rank)
        seen.append(number[np.array(sampled.seen, np.int64)])
    return Samples((*ranks,), (*numbers,), (*classes,), (*seen,), seconds)
