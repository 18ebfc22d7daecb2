"""Ends a service on SIGTERM or Ctrl-C."""

from __future__ import annotations

import signal
import threading
from _thread import start_new_thread


def end_by_signals(stop: threading.Event) -> None:
    """Have SIGTERM and Ctrl-C set the event: on another thread, for the first may hold the event's lock just now."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: start_new_thread(stop.set, ()))
