"""A rank of which the process ended without a word: its rows end, and all others wait."""

from __future__ import annotations

import numpy as np
import pytest

from tests.detector.topology.test_rank_table import REDUCE, SECOND, SIX, START, Columns, judged

ENDS = 70
RANKS = [(machine, gpu) for machine in SIX for gpu in ("0", "1")]


def without(gone: set[tuple[str, str]], second: int, goes_on: bool = False) -> Columns:
    """The rows of two GPUs of each of six machines; some end, and the others wait unless the task goes on."""
    left = [at for at, who in enumerate(RANKS) if second <= ENDS or who not in gone]
    at = second if goes_on else min(second, ENDS)
    return {
        "machine": [RANKS[place][0] for place in left],
        "gpu": [RANKS[place][1] for place in left],
        "rank": np.array(left, float),
        "ranks": float(len(RANKS)),
        "operation": REDUCE,
        "operations_total": 300.0 + 7 * at,
        "pending": float(second > ENDS or second % 2),
        "counted_from": "birth",
    }


def test_a_rank_that_ended_is_what_all_others_wait_for() -> None:
    """One GPU of a machine is read no more, its sister is, and eleven ranks wait: named after half a minute."""
    said = judged(lambda second: without({("m2", "1")}, second), range(170), SIX)
    assert {(one.machine, one.device, one.level) for one in said} == {("m2", "gpu:1", "crit")}
    assert 30 <= (said[0].time - START) / SECOND - ENDS < 40
    assert "Likely its process ended" in said[0].message


@pytest.mark.parametrize(
    ("gone", "goes_on"),
    [
        ({("m2", "0"), ("m2", "1")}, False),
        ({("m2", "1")}, True),
        ({(name, "1") for name in SIX[:4]}, False),
    ],
)
def test_rows_that_end_are_no_end_of_a_rank(gone: set[tuple[str, str]], goes_on: bool) -> None:
    """All ranks of a machine, as an agent restarts; a rank while the task goes on; a third of the ranks at once."""
    assert judged(lambda second: without(gone, second, goes_on), range(170), SIX) == []
