"""The log as a sink."""

from __future__ import annotations

import logging

import pytest

from detector.alerts.alert import IncidentTracker
from detector.alerts.sinks.log import Log
from detector.model.verdict import Verdict
from store.schema.time import SECOND


def test_an_alert_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """Level and words reach the log on one line, whatever the message holds, and the end says how long it took."""
    incidents = IncidentTracker()
    with caplog.at_level(logging.INFO, "peerwatch.verdict"):
        for at, level in ((2, "warn"), (5, "crit"), (9, "ok")):
            verdict = Verdict(at * SECOND, "t9", "m1", None, "peer", "a.b", 1.0, SECOND, level, "m1 reads\n5")  # type: ignore[arg-type]
            alert = incidents.record(verdict)
            assert alert
            Log().send(alert)
    assert [record.levelno for record in caplog.records] == [logging.WARNING, logging.ERROR, logging.INFO]
    key = alert.incident
    assert caplog.records[1].getMessage() == f"crit [peer, task t9, incident {key}] m1 reads 5"
    assert caplog.records[2].getMessage() == f"ok [peer, task t9, incident {key}] m1 reads 5, after 8 s"
