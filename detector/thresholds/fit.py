"""From the highest excursions to thresholds: each stream gets an equal share of the pages that the operator allows.

What is learned is drawn towards the built-in threshold: upwards by how many excursions were seen, since ten of them
show that a stream is noisy; downwards by how long it was quiet, since rare harmless things show up late.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from detector.stats.arrays import Bools, Floats, Ints
from detector.thresholds.history import EVERY_MACHINE, SMALL, History
from detector.thresholds.tail import Tail, common_shape, excesses, tail_of

LEAST, MOST = 0.5, 3.0
"""Bounds of what is learned, in multiples of the built-in threshold."""
FEWEST_EXCURSIONS = 10
"""Excursions, of all streams together, from which on something is learned."""
LOWERS = 0.1
"""After so many of the operator's pages' worth of machine-hours the way down to a lower threshold is half gone."""
REACH = 30.0
"""A tail is followed so many times farther than the machine-hours reach; beyond that it is guesswork."""
_HARMLESS, _PAGES = 10.0, 0.5
"""Of so many crossings of a threshold so many are taken to be pages, before any is seen: harm stops the others."""
_PRIOR = 5.0
"""Excesses of a stream that count as much as those of streams like it."""
_USUAL_MEAN = 0.1
"""The mean excess of streams of which nothing is known."""


@dataclass(frozen=True, slots=True)
class Learned:
    """Thresholds of one table, in multiples of the built-in ones; arrays are [stream]."""

    multiplier: Floats
    wanted: Floats
    """What the tail asks for."""
    pages: Floats
    """False pages in a machine-hour that are expected with it."""
    known: Bools
    """What anything is known of."""
    own: dict[int, tuple[Ints, Floats]]
    """By stream, numbers of machines, and thresholds that the others have taught."""


@dataclass(frozen=True, slots=True)
class _Sample:
    """What is known of one stream."""

    over: float
    excess: Floats
    machines: Ints
    hours: float
    crossed: float
    false: float
    """The highest peak that the operator has called a false alarm."""

    def others(self) -> Floats:
        """Excesses without those of the machine with the highest, which may be at fault."""
        return self.excess[self.machines != self.machines[0]] if len(self.machines) else self.excess

    def tail(self, shape: float, mean: float, without: int | None = None) -> Tail:
        """Its tail, without the excursions of one machine; `mean` is the mean excess of streams like it."""
        excess = self.excess if without is None else self.excess[self.machines != without]
        return tail_of(self.over, excess, self.hours, shape, (mean, _PRIOR))


def fit(histories: Mapping[str, History], rate: float) -> dict[str, Learned]:
    """Thresholds by table for `rate` false pages in a machine-hour; nothing while too little was seen."""
    samples = {
        (table, stream): _sample(history, stream)
        for table, history in histories.items()
        for stream in np.flatnonzero(history.hours[:, : len(history.streams)].sum(0) > 0).tolist()
    }
    known = [one.excess for one in samples.values()]
    if sum(map(len, known)) < FEWEST_EXCURSIONS and not any(one.false for one in samples.values()):
        return {}
    shapes = common_shape(known), common_shape([one.others() for one in samples.values()])
    found = {}
    for table, history in histories.items():
        mine = {stream: one for (name, stream), one in samples.items() if name == table}
        small = [name.endswith(SMALL) for name in history.streams]
        means = [
            _usual([one.others() for stream, one in mine.items() if small[stream] == kind]) for kind in (False, True)
        ]
        found[table] = _of_table(mine, [means[kind] for kind in small], shapes, (rate, rate / len(samples)))
    return found


def _usual(samples: list[Floats]) -> float:
    """The mean excess of the median stream, for one of which nothing is known."""
    means = [float(one.mean()) for one in samples if len(one) > 1]
    return float(np.median([*means, _USUAL_MEAN]))


def _sample(history: History, stream: int) -> _Sample:
    peaks, machines, least = history.of(stream)
    over, excess = excesses(peaks, least)
    order = np.argsort(-peaks, kind="stable")[: len(excess)]
    false = float(peaks[machines == EVERY_MACHINE].max(initial=0.0))
    hours, crossed = (float(part[:, stream].sum()) for part in (history.hours, history.crossed))
    return _Sample(over, excess, machines[order], hours, crossed, false)


def _of_table(
    samples: Mapping[int, _Sample], means: list[float], shapes: tuple[float, float], rates: tuple[float, float]
) -> Learned:
    """Thresholds of one table; `means` [stream] are usual mean excesses, `rates` of all pages and of one stream's.

    `shapes` are those of all machines, and without the farthest of each stream.
    """
    wanted, multiplier, pages = np.ones((3, len(means)))
    own, known = {}, np.zeros(len(means), bool)
    for stream, one in samples.items():
        known[stream] = True
        share = _PAGES / (_HARMLESS + one.crossed)
        allowed = max(rates[1] / share, 1 / (REACH * one.hours))
        tail = one.tail(shapes[0], means[stream])
        wanted[stream] = tail.height(allowed)
        multiplier[stream] = _drawn(one, wanted[stream], rates[0])
        pages[stream] = share * tail.exceeded(max(multiplier[stream], one.over))
        machines = np.unique(one.machines[one.machines != EVERY_MACHINE])
        others = (one.tail(shapes[1], means[stream], machine).height(allowed) for machine in machines.tolist())
        own[stream] = machines, np.array([_drawn(one, height, rates[0]) for height in others])
    return Learned(multiplier, wanted, pages, known, own)


def _drawn(one: _Sample, height: float, rate: float) -> float:
    """A threshold drawn towards the built-in one, within bounds."""
    seen = len(one.excess)
    weight = seen / (seen + _PRIOR) if height > 1 else one.hours / (one.hours + LOWERS / rate)
    return float(min(max(height**weight, one.false, LEAST), MOST))
