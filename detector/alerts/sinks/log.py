"""The log as a sink: one line per alert in the log of the detector."""

from __future__ import annotations

import logging

from detector.alerts.alert import Alert, Sink
from detector.alerts.text import details
from detector.model.verdict import Level

_LEVELS: dict[Level, int] = {"ok": logging.INFO, "note": logging.INFO, "warn": logging.WARNING, "crit": logging.ERROR}
_log = logging.getLogger("peerwatch.verdict")


class Log(Sink):
    """Writes to the log of the detector."""

    def send(self, alert: Alert) -> str:
        """Write the alert as one line; line breaks in names are removed."""
        verdict = alert.verdict
        # The log has its own time and the head the key, so the first and last line of the details are redundant.
        task = f" task {verdict.task}," if verdict.task else ""
        head = f"{verdict.level} [{verdict.kind},{task} incident {alert.incident}]"
        _log.log(_LEVELS[verdict.level], "%s %s", head, " | ".join([alert.headline, *details(alert)[1:-1]]))
        return "written to the log"
