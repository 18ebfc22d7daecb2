"""The log as a sink."""

from __future__ import annotations

import logging

import pytest

from detector.alerts import log
from detector.verdict import Verdict


def test_a_verdict_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """Level and words of a verdict reach the log on one line, whatever the message holds."""
    with caplog.at_level(logging.INFO, "peerwatch.verdict"):
        for level in ("warn", "crit", "ok"):
            log.send(Verdict(2, "t9", "m1", None, "peer", "a.b", 1.0, 1, level, "m1 reads\n5"))  # type: ignore[arg-type]
    assert [record.levelno for record in caplog.records] == [logging.WARNING, logging.ERROR, logging.INFO]
    assert caplog.records[1].getMessage() == "crit [peer, task t9] m1 reads 5"
