"""Quick looks at the progress of transfers, many a second, summed up for the slower reading."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

from agent.layouts import Layout
from agent.memory import Memory
from agent.proxy import SEEN, Place, Proxies

_EASY_S = 60.0
_EASY, _NOBODY = 2, 10
"""Periods between two looks when nothing has moved for so long, and when there is nothing to look at."""
STEPS = ("posted", "transmitted", "done", "received")
Key = tuple[int, int]
"""Process number and address of a communicator in it."""


@dataclass(slots=True)
class _Target:
    place: Place
    told: bool
    """Whether the library says which rank a transfer is for."""
    before: Any
    """What had been seen (SEEN) when it was last asked for."""


@dataclass(frozen=True, slots=True)
class Shares:
    """Shares of looks, 0 to 1, that found an operation at work, a chunk being sent, a chunk awaited; and the last look.

    What several communicators share is nobody's own: then ranks and steps are None.
    """

    active: float
    sending: float
    receiving: float
    send_to: int | None
    receive_from: int | None
    unoffered: bool
    still: float
    """Seconds for which nothing at work has moved."""
    steps: tuple[int, ...] | None
    """Posted, transmitted, done by sending, and received."""


class Looks:
    """A thread that looks at every known communicator's proxy `hertz` times a second, at random times."""

    def __init__(self, hertz: float) -> None:
        self._targets: dict[Key, _Target] = {}
        self._proxies = Proxies()
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._run, args=(1 / hertz,), name="looks", daemon=True)
        self._thread.start()

    def watch(self, key: Key, memory: Memory, layout: Layout) -> None:
        """Look at this communicator from now on, if its proxy can be found."""
        head = memory.active_list(key[1], layout)
        if head is None:
            return
        place = key[0], head
        with self._lock:
            try:
                self._proxies.add(place, memory, layout, time.monotonic())
            except (KeyError, ValueError):  # the layout is another's word, and this one is absurd
                return
            self._targets[key] = _Target(place, "peer" in layout.get("ncclProxyOp", ()), np.zeros(1, SEEN)[0])

    def forget(self, gone: Callable[[Key], bool]) -> None:
        """Look no more at the communicators of which this is true."""
        with self._lock:
            self._targets = {key: target for key, target in self._targets.items() if not gone(key)}
            wanted = {target.place for target in self._targets.values()}
            self._proxies.keep(wanted.__contains__)

    def take(self, key: Key) -> Shares | None:
        """What the looks since the last call found; None: no look worked."""
        with self._lock:
            target = self._targets.get(key)
            if target is None:
                return None
            now, before = self._proxies.seen[self._proxies.order[target.place]].copy(), target.before
            looks = int(now["looks"] - before["looks"])
            if not looks:
                return None
            target.before = now
            alone = sum(one.place == target.place for one in self._targets.values()) == 1
        known = alone and target.told
        return Shares(
            active=int(now["actives"] - before["actives"]) / looks,
            sending=int(now["sendings"] - before["sendings"]) / looks,
            receiving=int(now["receivings"] - before["receivings"]) / looks,
            send_to=int(now["send_to"]) if known else None,
            receive_from=int(now["receive_from"]) if known else None,
            unoffered=bool(now["unoffered"]),
            still=float(now["looked"] - now["moved"]),
            steps=tuple(int(now[name]) for name in STEPS) if alone else None,
        )

    def close(self) -> None:
        """End the thread."""
        self._closed = True
        self._thread.join()

    def _run(self, period: float) -> None:
        stirred, chance = time.monotonic(), Random()
        while not self._closed:
            now = time.monotonic()
            with self._lock:
                if self._proxies.look(now):
                    stirred = now
                easy = (_EASY if now > stirred + _EASY_S else 1) if self._proxies.order else _NOBODY
            # At random times, or an iteration that takes a whole number of periods would always show the same moment.
            # A sleep has half the price of a wait for an event, and this happens many times a second.
            time.sleep(easy * period * chance.uniform(0.5, 1.5))
