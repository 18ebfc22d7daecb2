"""Silence: of a task with long iterations nothing tells at once since when it stands."""

from __future__ import annotations

import numpy as np
import pytest

from detector.harm.before_after import LOST, WAIT
from detector.harm.pace import BLOCK_NS, SIGNALS, Pace
from detector.harm.silence import judge_silence
from detector.model.verdict import Verdict
from tests.detector.harm.test_pace import swinging

START = 1_700_000_000 * 10**9


@pytest.mark.parametrize(("silent_blocks", "answer"), [(5, WAIT), (9, LOST)])
def test_a_silence_shorter_than_an_iteration_is_not_yet_what_the_task_stands_for(
    silent_blocks: int, answer: str
) -> None:
    """With iterations of 40 s a machine is lost after 45 s of silence, and not after 25 s."""
    blocks = 118
    shares = swinging(blocks, 8, len(SIGNALS))
    shares[-silent_blocks - 2 :] = 0.0
    pace = Pace(
        ["job-7"],
        START + BLOCK_NS * np.arange(blocks),
        shares[:, None].astype(np.float32),
        np.ones((1, len(SIGNALS)), np.float32),
        np.zeros((2, 1, len(SIGNALS)), np.float32),
    )
    now = int(pace.times[-1])
    silent = now - silent_blocks * BLOCK_NS
    verdict = Verdict(now, "job-7", "m3", None, "evidence", "event.silent", 0.6, silent, "note", "m3: no reading")
    assert pace.rhythm_ns("job-7") == 8 * BLOCK_NS
    assert judge_silence(verdict, now, pace, np.ones(blocks, bool)) == answer
