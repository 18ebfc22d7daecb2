"""Delivering verdicts to sinks."""

from __future__ import annotations

import pytest

from detector.alerts import deliver
from detector.verdict import Verdict


def test_a_sink_that_fails_keeps_nothing_from_the_others(caplog: pytest.LogCaptureFixture) -> None:
    """It is named with its reason, and every other sink gets every verdict."""
    said: list[Verdict] = []

    def broken(_: Verdict) -> None:
        raise RuntimeError("no room on the wall")

    verdicts = [Verdict(time, "t9", f"m{time}", None, "peer", "a.b", 1.0, 1, "warn", "m reads 5") for time in (2, 3)]
    deliver(verdicts, (broken, said.append))
    assert said == verdicts
    assert [record.exc_info is not None for record in caplog.records] == [True, True]
    assert "m3" in caplog.text
