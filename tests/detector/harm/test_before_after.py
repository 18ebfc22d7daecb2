"""Before and after: whether a task goes slower while something is on."""

from __future__ import annotations

import numpy as np
import pytest

from detector.harm.before_after import NO, YES, slower


@pytest.mark.parametrize(
    ("falling", "answer"), [(range(2), NO), (range(9, 11), NO), (range(9), YES), (range(2, 11), YES)]
)
def test_signals_that_are_known_alike_are_all_asked(falling: range, answer: str) -> None:
    """Two of eleven signals of equal noise that fall by 3 % are no loss of pace; nine are, whichever they are."""
    on, logs = np.arange(83) >= 77, np.zeros((83, 11))
    logs[np.ix_(on, falling)] = np.log(0.97)
    assert slower(logs, on) == answer
