"""The simplest sink: one line an alert in the program's log."""

from __future__ import annotations

import logging

from detector.alerts.alert import Alert, Sink
from detector.alerts.text import details
from detector.model.verdict import Level

_LEVELS: dict[Level, int] = {"ok": logging.INFO, "warn": logging.WARNING, "crit": logging.ERROR}
_log = logging.getLogger("peerwatch.verdict")


class Log(Sink):
    """Writes to the log of the detector."""

    def send(self, alert: Alert) -> str:
        """Write the alert as one line; the machine's words cannot break it into two."""
        verdict = alert.verdict
        # Since when and how to ask for more stands in other words in the log already: its own time and the key.
        task = f" task {verdict.task}," if verdict.task else ""
        head = f"{verdict.level} [{verdict.kind},{task} incident {alert.incident}]"
        _log.log(_LEVELS[verdict.level], "%s %s", head, " | ".join([alert.headline, *details(alert)[1:-1]]))
        return "written to the log"
