"""Small lasting lateness, found in blocks of samples."""

from __future__ import annotations

import numpy as np
import pytest

from detector.methods.progress.lateness_trend import MIN_SLOWER, LatenessTrend
from detector.methods.progress.live_ranks import LiveRanks

SECOND, START = 10**9, 1_700_000_000 * 10**9
PROCESSES = 8


def live_ranks() -> LiveRanks:
    """One task on machines of two processes each."""
    every = np.arange(PROCESSES)
    return LiveRanks(every, every * 0, every, every, every // 2, every * 0, np.ones(PROCESSES, bool))


def alarms(
    seed: int, shift: float, onset: int, seconds: int, disturbed: bool = False, offset: float = 0.0, lost: int = 0
) -> list[tuple[int, int]]:
    """(second, process) of each first alarm; process 5 is later by `shift` from `onset` on.

    `offset` is added to what process 2 always shows; of every `lost` samples one is unknown.
    """
    trend, chance, live, every = LatenessTrend(), np.random.default_rng(seed), live_ranks(), np.arange(PROCESSES)
    usual, found = chance.normal(0, 0.2, PROCESSES), list[tuple[int, int]]()
    for second in range(seconds):
        late = usual + chance.normal(0, 0.1, PROCESSES)
        late[5] += shift * (second >= onset)
        late[2] += offset
        late[(second + every) % lost == 0 if lost else every < 0] = np.nan
        normal = np.ones(PROCESSES, bool)
        normal[3] = not (disturbed and second >= onset)
        trend.update(START + second * SECOND, live, late, np.full(PROCESSES, 0.03), normal)
        known = {process for _, process in found}
        found += [(second, p) for p in np.flatnonzero(trend.cusum.alarmed[:PROCESSES]).tolist() if p not in known]
    return found


@pytest.mark.parametrize("seed", range(7))
def test_a_tenth_of_the_time_is_found_within_a_minute(seed: int) -> None:
    """A process that is late by 13 % of the time more than before is named, and no other."""
    ((second, process),) = alarms(seed, 0.13, 150, 230)
    assert process == 5
    assert 150 < second <= 210


def test_an_hour_of_health_has_no_alarm() -> None:
    """Processes that are always late by different amounts are none of them late by more than before."""
    assert alarms(11, 0.0, 0, 3600) == []


def test_of_what_comes_beside_a_suspect_nothing_is_learned() -> None:
    """Lateness that lasts beside another suspect does not become usual."""
    ((second, process),) = alarms(13, 0.06, 100, 1500, disturbed=True)
    assert (process, second > 100) == (5, True)


@pytest.mark.parametrize("beside", [False, True])
def test_iterations_that_another_suspect_lengthens_are_not_its_harm(beside: bool) -> None:
    """A process that is late by little is said to lengthen iterations only where no other process is suspect."""
    trend, chance, live, normal = LatenessTrend(), np.random.default_rng(29), live_ranks(), np.ones(PROCESSES, bool)
    for second in range(230):
        late, longer = chance.normal(0, 0.05, PROCESSES), second >= 120
        late[5] += 0.17 * longer
        normal[3] = not (beside and longer)
        trend.update(START + second * SECOND, live, late, np.full(PROCESSES, 0.06 * longer), normal)
    assert trend.cusum.alarmed[5]
    assert (trend.slower[5] >= MIN_SLOWER) != beside


@pytest.mark.parametrize("more", [{"offset": 0.7}, {"offset": -0.4}, {"lost": 4}])
def test_what_is_always_so_and_what_is_missing_say_nothing(more: dict[str, float]) -> None:
    """With a constant lateness elsewhere, or every fourth sample missing, the process that changed is the only one."""
    assert [process for _, process in alarms(17, 0.13, 150, 240, **more)] == [5]  # type: ignore[arg-type]


def test_what_is_over_is_forgotten() -> None:
    """Once a process is no later than usual, and iterations are not longer, what comes later begins with nothing."""
    trend, chance, live = LatenessTrend(), np.random.default_rng(19), live_ranks()
    normal, seen = np.ones(PROCESSES, bool), list[float]()
    for second in range(340):
        late, slow = chance.normal(0, 0.05, PROCESSES), 150 <= second < 270
        late[5] += 0.21 * slow
        trend.update(START + second * SECOND, live, late, np.full(PROCESSES, 0.04 * slow), normal)
        seen.append(float(trend.cusum.value[5]))
    assert seen[269] > 20
    assert seen[-1] == 0


def test_what_made_iterations_longer_does_so_while_it_lasts() -> None:
    """That the longer iteration becomes the usual one makes no smaller thing of a rank that is late as before."""
    trend, chance, live = LatenessTrend(), np.random.default_rng(23), live_ranks()
    normal, slower = np.ones(PROCESSES, bool), list[float]()
    for second in range(260):
        late, slow = chance.normal(0, 0.05, PROCESSES), second >= 150
        late[5] += 0.17 * slow
        stretch = 0.07 * slow * 0.97 ** max(second - 150, 0)
        trend.update(START + second * SECOND, live, late, np.full(PROCESSES, stretch), normal)
        slower.append(float(trend.slower[5]))
    assert trend.cusum.alarmed[5]
    assert slower[255] == max(slower[200:]) > 0.01 > stretch
