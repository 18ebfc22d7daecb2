"""Ends a service on SIGTERM or Ctrl-C."""

from __future__ import annotations

import os
import signal
import threading
from _thread import start_new_thread


def end_by_signals(stop: threading.Event) -> None:
    """Have SIGTERM and Ctrl-C set the event: on another thread, for the first may hold the event's lock just now."""

    def end(*_: object) -> None:
        try:
            start_new_thread(stop.set, ())
        except RuntimeError:  # no thread can be started, so none that waits for the event may ever see it
            os._exit(1)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
