"""From excursions to thresholds: what raises one, what lowers one, how far, and for which machines."""

from __future__ import annotations

import numpy as np
import pytest

from detector.thresholds.excursions import Excursions
from detector.thresholds.fit import LEAST, MOST, Learned, fit
from detector.thresholds.history import EVERY_MACHINE, History

RATE = 0.5 / 1000
NOISY, QUIET = 0, 1


def history(hours: float, peaks: np.ndarray, machine: int | None = None, crossed: int = 0) -> History:
    """A table with a stream that has these peaks, by machines in turn or one, and a stream that has hardly any."""
    made = History()
    streams = made.places(["noisy", "quiet"])
    made.numbers([f"m{number}" for number in range(13)])
    machines = np.arange(len(peaks)) % 13 if machine is None else np.full(len(peaks), machine)
    none = np.zeros(len(peaks), np.int64)
    made.add(Excursions(none, machines, peaks, none, none))
    made.add(Excursions(np.array([QUIET]), np.array([4]), np.array([0.01]), np.array([0]), np.array([0])))
    made.count(0, streams, np.full(2, hours))
    made.cross(Excursions(*(np.zeros(crossed, np.int64) for _ in range(5))))
    return made


def fitted(hours: float, peaks: np.ndarray, **about: int) -> Learned:
    """What is learned of such a table."""
    return fit({"host": history(hours, peaks, **about)}, RATE)["host"]


def exponential(mean: float, count: int = 60) -> np.ndarray:
    """Peaks as an exponential distribution has them, without chance."""
    return -mean * np.log((np.arange(count) + 0.5) / count)


def test_nothing_is_learned_from_nothing() -> None:
    """Fewer than ten excursions teach nothing, nor do hours in which no table was judged."""
    assert fit({"host": history(9.0, exponential(0.1, 8))}, RATE) == {}
    assert fit({"host": history(0.0, exponential(0.1))}, RATE) == {}
    assert fit({}, RATE) == {}


def test_a_noisy_stream_is_raised_within_minutes() -> None:
    """Sixty excursions in five machine-hours raise its threshold at once, not that of another stream."""
    learned = fitted(5.0, exponential(0.3))
    assert learned.multiplier[NOISY] > 2
    assert 0.95 < learned.multiplier[QUIET] < 1.05


def test_a_threshold_falls_slowly() -> None:
    """A quiet stream keeps the built-in threshold for hours, and comes down by as many machine-hours as pages need."""
    found = [fitted(hours, exponential(0.02)).multiplier[NOISY] for hours in (4.0, 200.0, 4_000.0, 90_000.0)]
    assert found[0] > 0.97
    assert found == sorted(found, reverse=True)
    assert found[-1] == LEAST


def test_no_threshold_leaves_the_bounds() -> None:
    """What would need more is held at the bound, and it is known that it would."""
    learned = fitted(2.0, exponential(2.5))
    assert learned.multiplier[NOISY] == MOST < learned.wanted[NOISY]


def test_a_fault_does_not_raise_its_own_threshold() -> None:
    """A machine far above all others is judged by what the others have taught."""
    peaks = exponential(0.05)
    made = history(40.0, peaks)
    own = np.full(7, 5, np.int64)
    made.add(Excursions(0 * own, own, np.linspace(1.1, 1.9, 7), 0 * own, 0 * own))
    learned = fit({"host": made}, RATE)["host"]
    machines, limits = learned.own[NOISY]
    mine = float(limits[machines == 5][0])
    assert learned.multiplier[NOISY] > 2.0 > 1.25 > mine
    assert (limits[machines != 5] > 1.3).all()


def test_a_false_alarm_binds_all_machines() -> None:
    """What the operator has called a false alarm raises no page on any machine as long as it is remembered."""
    made = history(40.0, exponential(0.05))
    one = np.zeros(1, np.int64)
    made.add(Excursions(one, one + EVERY_MACHINE, one + 1.7, one, one))
    learned = fit({"host": made}, RATE)["host"]
    assert learned.multiplier[NOISY] >= 1.7
    assert (learned.own[NOISY][1] >= 1.7).all()


def test_harmless_crossings_need_no_higher_threshold() -> None:
    """Where thirty crossings slowed no task, a page is expected of fewer of the next, and the threshold is lower."""
    peaks = exponential(0.3)
    assert fitted(50.0, peaks, crossed=30).multiplier[NOISY] < fitted(50.0, peaks).multiplier[NOISY] - 0.2


def test_more_pages_allowed_mean_lower_thresholds() -> None:
    """The operator's number moves all thresholds one way."""
    tables = {"host": history(50.0, exponential(0.12))}
    found = [fit(tables, rate / 1000)["host"].multiplier[NOISY] for rate in (0.05, 0.5, 5.0, 50.0)]
    assert found == sorted(found, reverse=True)
    assert found[0] > found[-1] + 0.2


@pytest.mark.parametrize("rate", [0.06, 0.02, 0.003])
def test_the_number_asked_for_is_what_is_measured(rate: float) -> None:
    """By thresholds from a day of twenty streams, with one page in twenty crossings, as many pages come as asked."""
    rng, hours, streams = np.random.default_rng(4), 600.0, 20
    made, means = History(), 10 ** rng.uniform(-1.3, -0.7, streams)
    places = made.places([f"s{at}" for at in range(streams)])
    made.numbers([f"m{number}" for number in range(40)])
    for stream, mean in enumerate(means):
        peaks = rng.exponential(mean, rng.poisson(1.5 * hours))
        none = np.zeros(len(peaks), np.int64)
        made.add(Excursions(none + stream, rng.integers(0, 40, len(peaks)), peaks, none, none))
    made.count(0, places, np.full(streams, hours))
    wanted = fit({"gpu": made}, rate)["gpu"].wanted
    crossings = sum(float(1.5 * np.exp(-limit / mean)) for limit, mean in zip(wanted, means, strict=True))
    assert rate / 8 < crossings / 20 < 1.3 * rate
