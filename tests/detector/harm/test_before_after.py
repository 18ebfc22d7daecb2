"""Before and after: whether a task goes slower while something is on."""

from __future__ import annotations

import numpy as np
import pytest

from detector.harm.before_after import NO, YES, does_less, slower


@pytest.mark.parametrize(
    ("falling", "answer"), [(range(2), NO), (range(9, 11), NO), (range(9), YES), (range(2, 11), YES)]
)
def test_signals_that_are_known_alike_are_all_asked(falling: range, answer: str) -> None:
    """Two of eleven signals of equal noise that fall by 3 % are no loss of pace; nine are, whichever they are."""
    on, logs = np.arange(83) >= 77, np.zeros((83, 11))
    logs[np.ix_(on, falling)] = np.log(0.97)
    assert slower(logs, on) == answer


@pytest.mark.parametrize(
    ("falls", "swings", "varies", "less"),
    [(0.3, 0.02, 0.0, True), (0.07, 0.02, 0.0, False), (0.0, 0.9, 0.0, False), (0.0, 0.02, 0.6, False)],
)
def test_a_machine_does_less_if_that_is_no_swing_of_long_iterations(
    falls: float, swings: float, varies: float, less: bool
) -> None:
    """A third less is less; what iterations of nine blocks differ by, or what each block does, says nothing."""
    block = np.arange(59)
    on, chance = block >= 10, np.random.default_rng(67)
    noise = chance.normal(0, varies, (59, 1)) + chance.normal(0, 0.01, (59, 12))
    wave = np.where(block % 9 < 3, 1.0, 0.0)[:, None] * swings
    assert does_less(noise + wave - falls * on[:, None], on) == less
