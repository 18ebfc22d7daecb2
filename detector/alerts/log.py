"""The simplest sink: one line a verdict in the program's log."""

from __future__ import annotations

import logging

from detector.verdict import Level, Verdict

_LEVELS: dict[Level, int] = {"ok": logging.INFO, "warn": logging.WARNING, "crit": logging.ERROR}
_log = logging.getLogger("peerwatch.verdict")


def send(verdict: Verdict) -> None:
    """Write the verdict as one line; the machine's words cannot break it into two."""
    message = " ".join(verdict.message.split())
    _log.log(_LEVELS[verdict.level], "%s [%s, task %s] %s", verdict.level, verdict.kind, verdict.task, message)
