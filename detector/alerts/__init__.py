"""Where verdicts go: one file a sink, each with `send(verdict)`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

from detector.alerts import log
from detector.verdict import Verdict

SINKS: tuple[Callable[[Verdict], None], ...] = (log.send,)
_log = logging.getLogger(__name__)


def deliver(verdicts: Iterable[Verdict], sinks: Sequence[Callable[[Verdict], None]] = SINKS) -> None:
    """Hand each verdict to each sink; one that fails is named and keeps nothing from the others."""
    for verdict in verdicts:
        for send in sinks:
            try:
                send(verdict)
            except Exception:
                _log.exception("a sink (%s) failed on the verdict about %s", send.__module__, verdict.machine)
