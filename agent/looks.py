"""Quick looks at the progress of transfers, many a second, summed up for the slower reading."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from agent.libraries import Layout
from agent.memory import Memory
from agent.proxy import Proxy, Transfers

Key = tuple[int, int]
"""Process number and address of a communicator in it."""


@dataclass(slots=True)
class _Target:
    place: tuple[int, int]
    """Process and address of the proxy's list: communicators may share one."""
    proxy: Proxy
    looks: int = 0
    active: int = 0
    sending: int = 0
    receiving: int = 0


@dataclass(frozen=True, slots=True)
class Shares:
    """Shares of looks, 0 to 1, that found an operation at work, a chunk being sent, a chunk awaited."""

    active: float
    sending: float
    receiving: float


class Looks:
    """A thread that looks at every known communicator's proxy `hertz` times a second."""

    def __init__(self, hertz: float) -> None:
        self._targets: dict[Key, _Target] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._run, args=(1 / hertz,), name="looks", daemon=True)
        self._thread.start()

    def watch(self, key: Key, memory: Memory, layout: Layout) -> None:
        """Look at this communicator from now on, if its proxy can be found."""
        head = memory.active_list(key[1], layout)
        if head is not None:
            with self._lock:
                self._targets[key] = _Target((key[0], head), Proxy(memory, head, layout))

    def forget(self, gone: Callable[[Key], bool]) -> None:
        """Look no more at the communicators of which this is true."""
        with self._lock:
            self._targets = {key: target for key, target in self._targets.items() if not gone(key)}

    def take(self, key: Key) -> Shares | None:
        """What the looks since the last call found; None: no look worked."""
        with self._lock:
            target = self._targets.get(key)
            if target is None or not target.looks:
                return None
            found = (target.active, target.sending, target.receiving)
            shares = Shares(*(count / target.looks for count in found))
            target.looks = target.active = target.sending = target.receiving = 0
            return shares

    def close(self) -> None:
        """End the thread."""
        self._closed = True
        self._thread.join()

    def _run(self, period: float) -> None:
        while not self._closed:
            time.sleep(period)  # half the price of a wait for an event, and this happens many times a second
            with self._lock:
                found: dict[tuple[int, int], Transfers | None] = {}
                for target in self._targets.values():
                    if target.place not in found:
                        found[target.place] = _look(target.proxy)
                    one = found[target.place]
                    if one is not None:
                        target.looks += 1
                        target.active += one.active
                        target.sending += one.sending
                        target.receiving += one.receiving


def _look(proxy: Proxy) -> Transfers | None:
    try:
        return proxy.look()
    except (ValueError, MemoryError, struct.error):  # the layout is another's word, and this one is absurd
        return None
