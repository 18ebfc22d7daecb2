"""Times and durations as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.time_format import ago, duration, moment, shown


@given(st.integers(0, 4 * 10**9))
def test_shown_times_can_be_given_back(second: int) -> None:
    """The parser reads every time that a command shows, as UTC."""
    assert moment(shown(second * 10**9)) == second * 10**9


def test_times() -> None:
    """A time may name its zone, be a date alone, or Unix nanoseconds, to the microsecond exactly."""
    assert moment("1970-01-01T01:00+01:00") == 0
    assert moment("1970-01-03") == 2 * 86400 * 10**9
    assert moment("1767225600123456789") == 1767225600123456789
    assert moment("2026-01-01T00:00:00.123457Z") == 1767225600123457000


def test_durations() -> None:
    """Every unit counts, and fractions do."""
    seconds = [duration(text) // 10**9 for text in ("90s", "5m", "1.5h", "2d", "3w")]
    assert seconds == [90, 300, 5400, 172800, 1814400]
    assert [ago(second) for second in (7.4, 150, 7300, 200000)] == ["7 s", "2 m", "2 h", "2 d"]


@pytest.mark.parametrize("text", ["", "5", "5 parsecs", "-3s", "h"])
def test_no_duration(text: str) -> None:
    """A text that is no duration is refused with an example of one."""
    with pytest.raises(ValueError, match="write for example 90s"):
        duration(text)


@pytest.mark.parametrize("text", ["36501d", "99999999999999999w", "9" * 400 + "s"])
def test_a_duration_beyond_all_clocks(text: str) -> None:
    """A duration that leads beyond the times of a store is refused."""
    assert duration("36500d") == 36500 * 86400 * 10**9
    with pytest.raises(ValueError, match="is too long"):
        duration(text)


@pytest.mark.parametrize("text", ["0001-01-01", "1969-12-31T23:59:59", "9999-12-31", "9" * 24])
def test_a_time_beyond_all_clocks(text: str) -> None:
    """A time before 1970 or after 2262 has no place in a store."""
    with pytest.raises(ValueError, match="between 1970 and 2262"):
        moment(text)


@pytest.mark.parametrize("text", ["", "now", "2026-13-45", "²", "9" * 5000])
def test_no_time(text: str) -> None:
    """A text that is no time is refused with an example of one."""
    with pytest.raises(ValueError, match="write for example 2026-05-01"):
        moment(text)
