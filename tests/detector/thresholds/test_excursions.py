"""Excursions and their history: begin, peak and end; the highest of each day; what is forgotten."""

from __future__ import annotations

import numpy as np

from detector.thresholds.excursions import Excursions, Tracker
from detector.thresholds.history import DAY_NS, DAYS, EVERY_MACHINE, PLACES, History


def step(tracker: Tracker, now: int, *cells: tuple[int, int, float], machines: int = 4) -> list[tuple[float, ...]]:
    """Give cells (stream, machine, height) to the tracker; stream, machine, peak, begin and end of what is over."""
    stream, machine, height = (np.array([cell[at] for cell in cells]) for at in range(3))
    done = tracker.note(now, stream.astype(int), machine.astype(int), height.astype(float), (3, machines))
    return list(
        zip(*(getattr(done, name).tolist() for name in ("stream", "machine", "peak", "begun", "ended")), strict=True)
    )


def test_an_excursion_lasts_until_nothing_is_left() -> None:
    """Its peak is the highest evidence of any device of the machine; streams and machines do not mix."""
    tracker = Tracker()
    assert step(tracker, 10, (0, 1, 0.2), (0, 1, 0.5), (2, 3, 0.1)) == []
    assert step(tracker, 20, (0, 1, 0.3), (2, 3, 0.4)) == []
    assert step(tracker, 30, (2, 3, 0.7)) == [(0, 1, 0.5, 10, 30)]
    assert step(tracker, 40, (0, 1, 0.9), (2, 3, 0.0)) == [(2, 3, 0.7, 10, 40)]


def test_machines_that_join() -> None:
    """A fleet that grows takes along what is under way."""
    tracker = Tracker()
    step(tracker, 10, (1, 2, 0.6), machines=3)
    step(tracker, 20, (1, 2, 0.8), (1, 5, 0.3), machines=6)
    assert step(tracker, 30, (1, 5, 0.35), machines=6) == [(1, 2, 0.8, 10, 30)]


def found(stream: int, peaks: list[float], day: int = 1000, machine: int = 0) -> Excursions:
    """Excursions of a stream that ended on one day."""
    count = len(peaks)
    one = np.ones(count, np.int64)
    return Excursions(stream * one, machine * one, np.array(peaks), day * DAY_NS * one, (day * DAY_NS + 7) * one)


def test_the_highest_of_a_day_are_remembered() -> None:
    """Of more excursions than there is room for, the highest remain, and it is known from which height on."""
    history = History()
    history.turn(1000 * DAY_NS)
    stream = int(history.places(["a", "b"])[1])
    history.numbers(["m7", "m3"])
    history.add(found(stream, [at / 100 for at in range(1, PLACES + 12)], machine=1))
    history.add(found(stream, [9.0], machine=EVERY_MACHINE))
    peaks, machines, least = history.of(stream)
    assert (len(peaks), peaks.max(), least) == (PLACES, 9.0, 0.13)
    assert sorted(set(machines.tolist())) == [EVERY_MACHINE, 1]
    assert history.of(0)[2] == 0


def test_a_week_is_remembered() -> None:
    """Excursions, crossings and hours of a day are gone a week later, and those of the day after are not."""
    history = History()
    history.turn(1000 * DAY_NS)
    streams = history.places(["a"])
    for day in (1000, 1001):
        history.turn(day * DAY_NS)
        history.add(found(0, [0.1 * (day - 999)], day))
        history.cross(found(0, [2.0], day))
        history.count(day * DAY_NS, streams, np.array([5.0]))
    history.turn((1000 + DAYS) * DAY_NS)
    assert (history.of(0)[0].tolist(), history.hours.sum(), history.crossed.sum()) == ([0.2], 5.0, 1.0)


def test_a_pause_of_months_leaves_nothing() -> None:
    """A detector that stood for months begins again."""
    history = History()
    history.turn(1000 * DAY_NS)
    history.places(["a"])
    history.add(found(0, [0.4]))
    history.turn(1100 * DAY_NS)
    assert not history.peaks.any()


def test_new_streams_leave_the_others_as_they_are() -> None:
    """A metric that is read from today on does not mix with those known before."""
    history = History()
    history.turn(1000 * DAY_NS)
    history.places(["a", "b"])
    history.add(found(1, [0.7]))
    assert history.places(["c", "b", "a"]).tolist() == [2, 1, 0]
    assert [history.of(at)[0].tolist() for at in range(3)] == [[], [0.7], []]
