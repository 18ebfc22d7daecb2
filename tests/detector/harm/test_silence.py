"""Silence: of a task with long iterations nothing tells at once since when it stands."""

from __future__ import annotations

import numpy as np
import pytest

from detector.harm.before_after import LOST, WAIT, YES
from detector.harm.pace import BLOCK_NS, SIGNALS, Pace
from detector.harm.silence import judge_silence
from detector.methods.evidence.heartbeats import CLUE
from detector.model.verdict import Level, Verdict
from tests.detector.harm.test_pace import swinging

START = 1_700_000_000 * 10**9


def standing(shares: np.ndarray, stands_blocks: int) -> Pace:
    """A task with these shares of its pace that stands in the last blocks."""
    shares[-stands_blocks:] = 0.0
    blocks = len(shares)
    return Pace(
        ["job-7"],
        START + BLOCK_NS * np.arange(blocks),
        shares[:, None].astype(np.float32),
        np.ones((1, len(SIGNALS)), np.float32),
        np.zeros((2, 1, len(SIGNALS)), np.float32),
    )


def judged(pace: Pace, silent_blocks: int, device: str | None = None, explained: bool = False) -> str:
    """What is said of a machine, or a device, that is silent for so long."""
    now = int(pace.times[-1])
    silent = now - silent_blocks * BLOCK_NS
    verdict = Verdict(now, "job-7", "m3", device, "evidence", "event.silent", 0.6, silent, "note", "m3: no reading")
    return judge_silence(verdict, now, pace, np.full(len(pace.times), not explained))


@pytest.mark.parametrize(("silent_blocks", "answer"), [(7, WAIT), (11, LOST)])
def test_a_silence_shorter_than_an_iteration_is_not_yet_what_the_task_stands_for(
    silent_blocks: int, answer: str
) -> None:
    """With iterations of 50 s a device is lost after 55 s of silence, and not after 35 s."""
    pace = standing(swinging(174, 10, len(SIGNALS)), silent_blocks + 2)
    assert pace.rhythm_ns("job-7") == 10 * BLOCK_NS
    assert judged(pace, silent_blocks, "gpu:2") == answer


@pytest.mark.parametrize(
    ("device", "silent_blocks", "answer"), [(None, 12, WAIT), (None, 13, LOST), ("gpu:6", 4, WAIT), ("gpu:6", 7, LOST)]
)
def test_rows_are_missing_by_chance_for_a_while(device: str | None, silent_blocks: int, answer: str) -> None:
    """As its task stands, 20 s without the rows of one device are chance, and 60 s without a machine's a restart."""
    pace = standing(np.ones((112, len(SIGNALS))), silent_blocks)
    assert judged(pace, silent_blocks, device) == answer


@pytest.mark.parametrize(("silent_blocks", "answer"), [(11, WAIT), (13, LOST)])
def test_all_devices_of_a_machine_are_silent_while_one_source_is_slow(silent_blocks: int, answer: str) -> None:
    """They are lost for a task that stands after a minute, as a machine is; one of several is after half of it."""
    pace = standing(np.ones((112, len(SIGNALS))), silent_blocks)
    now = int(pace.times[-1])
    silent = now - silent_blocks * BLOCK_NS
    verdict = Verdict(now, "job-7", "m3", "gpu:1", "evidence", "event.silent", CLUE, silent, "note", "m3: no reading")
    assert judge_silence(verdict, now, pace, np.ones(112, bool)) == answer


@pytest.mark.parametrize(("silent_blocks", "answer"), [(26, WAIT), (31, LOST)])
def test_no_agent_restarts_for_longer_than_two_and_a_half_minutes(silent_blocks: int, answer: str) -> None:
    """After a pause of three minutes, earlier, a machine for which its task stands is lost after two and a half."""
    shares = np.ones((150, len(SIGNALS)))
    shares[31:67] = 0.0
    assert judged(standing(shares, silent_blocks), silent_blocks) == answer


def test_a_task_stopped_in_the_block_that_lost_a_part_of_its_pace() -> None:
    """A machine is lost if its task stopped 30 s after its last reading, as the block then ends 5 s later."""
    shares = np.ones((117, len(SIGNALS)))
    shares[-11] = 0.56
    assert judged(standing(shares, 10), 16) == LOST


@pytest.mark.parametrize(("stood_blocks", "silent_blocks", "answer"), [(16, 26, WAIT), (16, 31, LOST), (43, 31, WAIT)])
def test_a_machine_that_is_lost_in_a_pause_keeps_the_task_from_starting(
    stood_blocks: int, silent_blocks: int, answer: str
) -> None:
    """It fell silent 25 s after its task stopped and is lost after 150 s; not while a usual pause may last."""
    shares = np.ones((170, len(SIGNALS)))
    shares[25 : 25 + stood_blocks] = 0.0
    assert judged(standing(shares, silent_blocks + 5), silent_blocks) == answer


@pytest.mark.parametrize(("device", "explained"), [("rdma:mlx5_0/1", False), (None, True)])
def test_what_falls_silent_in_a_pause_is_not_lost_for_that(device: str | None, explained: bool) -> None:
    """A port does not keep a task from starting, nor a machine where it is known why the task stands."""
    pace = standing(np.ones((170, len(SIGNALS))), 33)
    assert judged(pace, 26, device, explained) == WAIT


@pytest.mark.parametrize(("seconds", "answer"), [(37, WAIT), (131, WAIT), (183, YES)])
def test_where_no_pace_is_known_a_machine_is_lost_when_no_agent_restarts_for_so_long(seconds: int, answer: str) -> None:
    """As a task starts on busy processors an agent may read nothing for half a minute; upgrades took two."""
    now = START + seconds * 10**9
    verdict = Verdict(now, "job-8", "m3", None, "evidence", "event.silent", 1.2, START, "warn", "m3: no reading")
    assert judge_silence(verdict, now, Pace(), np.ones(0, bool)) == answer


@pytest.mark.parametrize(("seconds", "answer"), [(65, WAIT), (115, WAIT), (190, YES)])
def test_of_a_task_that_has_just_begun_an_agent_restarts_for_three_minutes(seconds: int, answer: str) -> None:
    """It is read for a minute of five that are remembered: too short for its usual pace, and its agents do restart."""
    pace = standing(np.ones((60, len(SIGNALS))), 1)
    pace.values[:-12] = np.nan
    pace.level[:] = 0.0
    now = int(pace.times[-1])
    since = now - seconds * 10**9
    verdict = Verdict(now, "job-7", "m5", None, "evidence", "event.silent", 1.4, since, "warn", "m5: no reading")
    assert judge_silence(verdict, now, pace, np.ones(len(pace.times), bool)) == answer


@pytest.mark.parametrize(("iteration_blocks", "answer"), [(1, WAIT), (8, LOST)])
def test_peers_end_the_iteration_that_they_are_at_before_they_wait(iteration_blocks: int, answer: str) -> None:
    """A task stops 65 s after the last reading of a machine: in iterations of 40 s it may have been that machine."""
    shares = swinging(176, iteration_blocks, len(SIGNALS)) if iteration_blocks > 1 else np.ones((176, len(SIGNALS)))
    pace = standing(shares, 15)
    assert pace.iteration("job-7") == iteration_blocks
    assert judged(pace, 28 - iteration_blocks // 2) == answer


@pytest.mark.parametrize(("known", "answer"), [(slice(0, 0), LOST), (slice(-9, -5), WAIT)])
def test_a_device_falls_silent_by_chance_while_another_fault_is_open(known: slice, answer: str) -> None:
    """A fault elsewhere that was known as a GPU's readings ended explains why the task stands, also when it is over."""
    pace = standing(np.ones((112, len(SIGNALS))), 8)
    unexplained = np.ones(112, bool)
    unexplained[known] = False
    now = int(pace.times[-1])
    silent = now - 8 * BLOCK_NS
    verdict = Verdict(now, "job-7", "m3", "gpu:3", "evidence", "event.silent", 0.6, silent, "note", "m3: no reading")
    assert judge_silence(verdict, now, pace, unexplained) == answer


@pytest.mark.parametrize(
    ("level", "silent_blocks", "answer"),
    [("note", 25, WAIT), ("note", 59, WAIT), ("note", 61, YES), ("warn", 23, WAIT), ("warn", 25, YES)],
)
def test_without_a_pace_a_note_becomes_a_warning_after_five_minutes(
    level: Level, silent_blocks: int, answer: str
) -> None:
    """A machine that trains alone is all that shows its task's pace: two minutes for a silence that is a warning."""
    shares = np.ones((130, len(SIGNALS)))
    pace = standing(shares, 1)
    pace.values[-silent_blocks:] = np.nan
    now = int(pace.times[-1])
    since = now - silent_blocks * BLOCK_NS
    verdict = Verdict(now, "job-7", "m3", None, "evidence", "event.silent", 0.5, since, level, "m3: no reading")
    assert judge_silence(verdict, now, pace, np.ones(len(pace.times), bool)) == answer
