"""The watchdog of an emulated rank: polls unfinished work ten times a second, as PyTorch's does."""

from __future__ import annotations

import ctypes
import threading
from collections import deque

from emulator.training.ctypes_api import NOT_READY, Calls

NAME = "pt_nccl_watchdg"
PERIOD_S = 0.1
PR_SET_NAME = 15


class Watchdog(threading.Thread):
    """Asks NCCL for the asynchronous error of each communicator with unfinished work, then whether it is finished."""

    def __init__(self, calls: Calls) -> None:
        super().__init__(name=NAME, daemon=True)
        self._calls = calls
        self._works: deque[tuple[int, int]] = deque()
        self._events: list[int] = []
        self._ended = threading.Event()

    def take_event(self) -> int:
        """An event to record behind a piece of work."""
        return self._events.pop() if self._events else self._calls.make("cudaEventCreateWithFlags", 2)

    def watch(self, communicator: int, event: int) -> None:
        """From now on ask after this work; the event comes back to the pool when it is done."""
        self._works.append((communicator, event))

    def run(self) -> None:
        """Poll until stopped."""
        ctypes.CDLL(None).prctl(PR_SET_NAME, NAME.encode(), 0, 0, 0)
        while not self._ended.wait(PERIOD_S):
            self._poll()

    def _poll(self) -> None:
        code = ctypes.c_int()
        for _ in range(len(self._works)):
            communicator, event = self._works[0]
            self._calls("ncclCommGetAsyncError", communicator, ctypes.byref(code))
            if self._calls.result("cudaEventQuery", event) == NOT_READY:
                self._works.rotate(-1)
            else:
                self._works.popleft()
                self._events.append(event)

    def stop(self) -> None:
        """Stop polling; returns when the thread is through."""
        self._ended.set()
        if self.is_alive():
            self.join(1.0)
