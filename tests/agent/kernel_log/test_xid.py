"""What Xids mean, alone and in the light of those before them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.kernel_log.xid import XIDS, Xids, classify
from agent.system.events import Event, Repeats, samples

SECOND = 10**9
START = 1_790_000_000 * SECOND


@pytest.mark.parametrize("code", [13, 31, 43, 45, 68, 69])
def test_a_programs_own_error_is_information(code: int) -> None:
    """What user code causes is information."""
    assert classify(code).severity == "info"


@pytest.mark.parametrize("code", [63, 94])
def test_contained_memory_errors_are_watched(code: int) -> None:
    """A contained error is a warning."""
    assert classify(code).severity == "warn"


@pytest.mark.parametrize("code", [48, 64, 74, 79, 92, 95, 119, 120, 140, 143, 144, 145])
def test_hardware_is_evidence(code: int) -> None:
    """What only the hardware can cause is crit."""
    meaning = classify(code)
    assert (meaning.severity, meaning.program) == ("crit", False)


def test_an_unknown_code_is_a_warning() -> None:
    """A code of a later driver is neither harmless nor evidence."""
    assert classify(977).severity == "warn"
    assert 977 not in XIDS


def test_a_line_that_says_nonfatal_is_believed() -> None:
    """NVLink codes are fatal or not by their text, whichever way that is written."""
    assert classify(145, "RLW_SRC_TRACK Nonfatal XC1 i0 Link 17 (0x04084507)").severity == "warn"
    assert classify(149, "NETIR_LINK_EVT Non-fatal Link 03").severity == "warn"
    assert classify(149, "NETIR_LINK_EVT Fatal Link 05 (0x016415c6)").severity == "crit"


@pytest.mark.parametrize(
    ("action", "severity"),
    [
        ("0x1 (GPU Reset Required)", "crit"),
        ("0x2 (Node Reboot Required)", "crit"),
        ("0x2 (OS Reboot)", "crit"),
        ("0x1 (PF FLR)", "crit"),
        ("0x4 (Drain and Reset)", "warn"),
        ("0x3 (Drain P2P)", "warn"),
        ("0x0 (None)", "info"),
    ],
)
def test_the_recovery_action_says_how_bad_it_is(action: str, severity: str) -> None:
    """Xid 154 is as bad as the action it asks for, and its words name it; without the text it is a warning."""
    meaning = classify(154, f"GPU recovery action changed from 0x7 (Reset) to {action}")
    assert meaning.severity == severity
    assert action[5:-1] in meaning.words
    assert classify(154).severity == "warn"


@given(st.integers(-(2**40), 2**40), st.text(max_size=120))
def test_any_code_and_text_is_classified(code: int, text: str) -> None:
    """Whatever a driver writes has a meaning, and only listed codes are crit."""
    meaning = classify(code, text)
    assert meaning.words
    assert meaning.severity != "crit" or code in XIDS


def test_requests_24_xid_45_in_a_storm() -> None:
    """Channels cleaned up after another error are no events; cleaned up alone they are information."""
    xids = Xids()
    rows = xids.classify(START, "gpu:3", 48)
    assert rows is not None
    assert rows.code == "xid:48"
    assert xids.classify(START + 2 * SECOND, "gpu:3", 45) is None
    assert xids.classify(START + SECOND, "gpu:5", 45, "Ch 0000000c caused by previous Xid 145") is None
    alone = xids.classify(START + 200 * SECOND, "gpu:3", 45)
    assert alone is not None
    assert alone.severity == "info"


def test_requests_24_xid_95_repeated() -> None:
    """800,000 equal events make two rows: the first, and their number."""
    xids, repeats = Xids(), Repeats()
    rows = []
    for number in range(800):
        event = xids.classify(START + number, "gpu:2", 95)
        assert event is not None
        rows += [new for new in [repeats.admit(START + number, event)] if new]
    rows += repeats.due(START + 61 * SECOND)
    assert [event.code for event in rows] == ["xid:95", "xid:95"]
    assert "799 more times in 61 s" in rows[1].message


def test_requests_24_xid_162_and_163_cancel() -> None:
    """Power smoothing off and on again is never crit."""
    xids = Xids()
    severities = [xids.classify(START + at, "gpu:1", code).severity for at, code in ((0, 163), (9, 162))]  # type: ignore[union-attr]
    assert severities == ["warn", "info"]


def test_requests_24_program_errors_of_one_gpu_alone() -> None:
    """In three runs on one GPU alone a program error is a warning, not crit."""
    xids = Xids()
    found = [xids.classify(START + hours * 3600 * SECOND, "gpu:6", 31) for hours in (0, 1, 2)]
    assert [event.severity for event in found if event] == ["info", "info", "warn"]
    assert found[2] is not None
    assert "3 runs on this GPU" in found[2].message


def test_program_errors_of_all_gpus() -> None:
    """A program that fails on all its GPUs is a bad program, run after run."""
    xids = Xids()
    for hours in range(5):
        for gpu in range(4):
            event = xids.classify(START + hours * 3600 * SECOND + gpu, f"gpu:{gpu}", 13)
            assert event is not None
            assert event.severity == "info"


def test_the_links_of_a_lost_gpus_neighbours() -> None:
    """A neighbour's NVLink error behind the loss of a GPU is not crit for the neighbour."""
    xids = Xids()
    lost = xids.classify(START, "gpu:4", 79)
    assert lost is not None
    assert lost.severity == "crit"
    neighbour = xids.classify(START + SECOND, "gpu:7", 74)
    assert neighbour is not None
    assert neighbour.severity == "warn"
    assert "gpu:4 was lost" in neighbour.message
    later = xids.classify(START + 100 * SECOND, "gpu:7", 74)
    assert later is not None
    assert later.severity == "crit"


def test_repeats_that_stop_are_forgotten() -> None:
    """After a quiet window an equal event is news again."""
    repeats, event = Repeats(10 * SECOND), Event("aer", "pci:0000:3b:00.0", "info", "corrected")
    assert repeats.admit(START, event) == event
    assert repeats.due(START + 5 * SECOND) == []
    assert repeats.due(START + 11 * SECOND) == []
    assert repeats.admit(START + 12 * SECOND, event) == event


def test_a_worse_severity_is_news() -> None:
    """An event that gets worse is reported at once."""
    repeats = Repeats()
    assert repeats.admit(START, Event("xid:145", "gpu:0", "warn", "not fatal")) is not None
    assert repeats.admit(START + 1, Event("xid:145", "gpu:0", "crit", "fatal")) is not None


def test_too_many_different_events() -> None:
    """A flood of different events is bounded, and what was dropped is counted."""
    repeats = Repeats()
    rows = [repeats.admit(START, Event(f"xid:{code}", "gpu:0", "warn", "")) for code in range(1500)]
    assert sum(event is not None for event in rows) == 1024
    assert repeats.unfolded == 476


def test_rows_of_one_code_do_not_share_time_and_keys() -> None:
    """Two devices with one code at one reading keep a row each."""
    events = [Event("xid:79", f"gpu:{gpu}", "crit", "lost") for gpu in (2, 5)]
    rows = samples("kernel_log", START, events)
    assert [row.time for row in rows] == [START, START + 1]
    assert {row.values["device"] for row in rows} == {"gpu:2", "gpu:5"}
