"""Incidents that explain the pace of a task: those of other machines, and those of a machine that are over."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from detector.harm.blamed import Blamed
from detector.model.verdict import Verdict
from store.schema.time import SECOND

START = 1_700_000_000 * SECOND
TIMES = START + np.arange(0, 300, 5) * SECOND
ONE = Verdict(START, "t7", "m2", None, "peer", "gpu.sm_clock_hertz", 1.3, START + 40 * SECOND, "warn", "")


def test_an_incident_that_is_over_explains_its_time() -> None:
    """An incident from 40 to 100 s explains these seconds: of other machines always, of its own once it is over."""
    blamed = Blamed()
    for second in range(40, 101, 5):
        blamed.note(START + second * SECOND, [ONE])
    theirs = blamed.elsewhere(replace(ONE, machine="m5"), TIMES)
    assert ((TIMES[theirs] - START) // SECOND).tolist() == list(range(40, 110, 5))
    assert blamed.before(ONE, TIMES).tolist() == theirs.tolist()
    assert not blamed.before(ONE, TIMES[:21]).any()
    assert not blamed.before(replace(ONE, machine="m5"), TIMES).any()
