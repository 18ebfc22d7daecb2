"""`peerwatch top`: the fleet live, from machines to GPUs to ranks, with the last minute of each."""

from __future__ import annotations

import signal
import sys
import threading
import time
from contextlib import closing
from typing import TYPE_CHECKING

from cli.config import locate_store, open_place
from cli.options import ConfigOption, StoreOption
from cli.terminal import console
from store.schema.contract import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

    from cli.queries.live_history import LiveHistory
    from store.schema.contract import Store

EVERY_S, REST = 1.0, 3.0
"""Seconds between two readings of the store; and how many times as long as a reading takes there is a rest."""
FRAME_S = 0.5


def top(store: StoreOption = None, config: ConfigOption = None) -> None:
    """Show the fleet live: sort, filter, go from a machine to its GPUs and ranks. ? lists the keys, q quits."""
    place, settings = locate_store(store, config)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise StoreError("top needs a terminal; for scripts and files: peerwatch status --json")

    def opened() -> Store:
        return open_place(place, settings=settings)

    opened().close()  # what is wrong with the store is said before the screen is taken over
    for number in (signal.SIGTERM, signal.SIGHUP):  # so that the terminal is restored then too
        signal.signal(number, signal.default_int_handler)
    _run(opened)


class Feeder:
    """Reads the store in a thread of its own, so that keys are answered while it is slow."""

    def __init__(self, opened: Callable[[], Store], history: LiveHistory) -> None:
        self.history, self.lock = history, threading.Lock()
        self.message = "reading …"
        self.paused = False
        self._opened, self._stop = opened, threading.Event()
        self._thread = threading.Thread(target=self._run, name="feeder", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread; a store that hangs is left behind."""
        self._stop.set()
        self._thread.join(1.0)

    def _run(self) -> None:
        wait = 0.0
        while not self._stop.wait(wait):
            begun = time.monotonic()
            try:
                with closing(self._opened()) as store:
                    while not self._stop.wait(wait):
                        begun = time.monotonic()
                        if not self.paused:
                            self.history.read(store, time.time_ns(), self.lock)
                            self.message = ""
                        wait = max(EVERY_S, REST * (time.monotonic() - begun))
            except Exception as error:  # without this thread the screen would stand still and say nothing
                self.message = str(error) if isinstance(error, StoreError) else f"{type(error).__name__}: {error}"
            wait = max(EVERY_S, REST * (time.monotonic() - begun))


def _run(opened: Callable[[], Store]) -> None:
    from rich.live import Live

    from cli.queries.live_history import LiveHistory  # loads numpy, which the agent's process must not
    from cli.views.top.keyboard import keyboard
    from cli.views.top.screen import draw
    from cli.views.top.state import TopState

    state, screen = TopState(), console()
    with (
        closing(Feeder(opened, LiveHistory())) as feeder,
        keyboard() as keys,
        Live(console=screen, screen=True, auto_refresh=False) as live,
    ):
        while not state.quit:
            with feeder.lock:
                drawn = draw(state, feeder.history, (screen.width, screen.height), feeder.message)
            live.update(drawn, refresh=True)
            for key in keys.wait(FRAME_S):
                state.press(key)
            feeder.paused = state.paused
