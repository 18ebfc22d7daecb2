"""Samples the progress of transfers many times a second, summed up for the slower reading."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

from agent.binaries.struct_layouts import Layout
from agent.nccl.proxy_state import Proxy, Steps
from agent.nccl.transfer_waits import NO_RANK, Transfers
from agent.process.memory import Memory

_SHARE = 0.01
"""Of a core, that samples may take."""
_EASY_S = 60.0
_EASY, _IDLE = 2, 10
"""Periods between two samples when nothing has moved for so long, and when there is nothing to sample."""
Key = tuple[int, int]
"""Process number and address of a communicator in it."""


@dataclass(slots=True)
class _Counts:
    """How many samples found what, since the first."""

    samples: int = 0
    active: int = 0
    sending: int = 0
    receiving: int = 0
    unsent: int = 0


@dataclass(slots=True)
class _Place:
    """One proxy's list, which communicators may share."""

    proxy: Proxy
    counts: _Counts = field(default_factory=_Counts)
    last: Transfers = field(default_factory=Transfers)
    moved: float = 0.0
    """When something at work was last seen to have moved, or nothing was at work; monotonic seconds."""
    sampled_at: float = 0.0


@dataclass(slots=True)
class _Target:
    place: tuple[int, int]
    """Process and address of the proxy's list."""
    names_rank: bool
    """Whether the library says which rank a transfer is for."""
    before: _Counts = field(default_factory=_Counts)


@dataclass(frozen=True, slots=True)
class ProxyShares:
    """Shares of samples, 0 to 1, with an operation at work, a chunk being sent, a chunk awaited; and the last sample.

    If several communicators share a proxy, ranks and steps cannot be attributed and are None. So are shares of sending
    or receiving where that goes within the machine alone.
    """

    active: float
    sending: float | None
    receiving: float | None
    send_to: int | None
    receive_from: int | None
    awaiting_gpu: bool
    still: float
    """Seconds for which nothing at work has moved."""
    steps: Steps | None
    credit_from: int | None = None
    channel: int | None = None
    net_device: int | None = None
    unsent: float | None = None
    """Share of samples with a chunk that is ready, and that nothing has moved since the sample before."""


class ProxySampler:
    """A thread that samples every known communicator's proxy `hertz` times a second, at random times."""

    def __init__(self, hertz: float) -> None:
        self._targets: dict[Key, _Target] = {}
        self._places: dict[tuple[int, int], _Place] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._run, args=(1 / hertz,), name="looks", daemon=True)
        self._thread.start()

    def watch(self, key: Key, memory: Memory, layout: Layout) -> None:
        """Sample this communicator from now on, if its proxy can be found."""
        head = memory.active_list(key[1], layout)
        if head is None:
            return
        place = key[0], head
        try:
            proxy = Proxy(memory, head, layout)
        except (KeyError, struct.error):  # members that overlap: another's word, and an absurd one
            return
        with self._lock:
            known = self._places.setdefault(place, _Place(proxy, moved=time.monotonic()))
            self._targets[key] = _Target(place, "peer" in layout.get("ncclProxyOp", ()), replace(known.counts))

    def unwatch(self, gone: Callable[[Key], bool]) -> None:
        """Stop to sample the communicators of which this is true."""
        with self._lock:
            self._targets = {key: target for key, target in self._targets.items() if not gone(key)}
            wanted = {target.place for target in self._targets.values()}
            self._places = {place: known for place, known in self._places.items() if place in wanted}

    def pop_shares(self, key: Key) -> ProxyShares | None:
        """The shares of the samples since the last call; None: no sample succeeded, or nothing was ever at work.

        The proxy works for the network alone: nothing is said of a communicator that stays within NVLink or SHM.
        """
        with self._lock:
            target = self._targets.get(key)
            if target is None:
                return None
            place, before = self._places[target.place], target.before
            samples = place.counts.samples - before.samples
            if not samples:
                return None
            target.before = now = replace(place.counts)
            if not now.active:
                return None
            alone = sum(one.place == target.place for one in self._targets.values()) == 1
            known = alone and target.names_rank
            return ProxyShares(
                (now.active - before.active) / samples,
                (now.sending - before.sending) / samples if place.proxy.sends else None,
                (now.receiving - before.receiving) / samples if place.proxy.receives else None,
                place.last.send_to if known else None,
                place.last.receive_from if known else None,
                place.last.awaiting_gpu,
                place.sampled_at - place.moved,
                replace(place.proxy.steps) if alone else None,
                place.last.credit_from if known else None,
                place.last.channel if alone else None,
                place.last.net_device if alone else None,
                (now.unsent - before.unsent) / samples if known else None,
            )

    def close(self) -> None:
        """End the thread."""
        self._closed = True
        self._thread.join()

    def _run(self, period: float) -> None:
        stirred, chance = time.monotonic(), Random()
        while not self._closed:
            now, spent = time.monotonic(), time.thread_time()
            with self._lock:
                for place in self._places.values():
                    if _sample(place, now):
                        stirred = now
                easy = (_EASY if now > stirred + _EASY_S else 1) if self._places else _IDLE
            # At random times, or an iteration that takes a whole number of periods would always show the same moment.
            # A sleep has half the price of a wait for an event, and this happens many times a second.
            time.sleep(pause(easy * period, time.thread_time() - spent) * chance.uniform(0.5, 1.5))


def pause(period: float, spent: float) -> float:
    """Seconds from one sample to the next, given those of CPU that one takes: many communicators cost longer pauses."""
    return max(period, spent / _SHARE)


def _sample(place: _Place, now: float) -> bool:
    """Whether something at work has moved."""
    try:
        seen = place.proxy.sample()
    except (ValueError, MemoryError, struct.error):  # the layout is another's word, and this one is absurd
        return False
    if seen is None:
        return False
    counts = place.counts
    counts.samples += 1
    counts.active += seen.active
    counts.sending += seen.sending
    counts.receiving += seen.receiving
    counts.unsent += seen.credit_from != NO_RANK and not place.proxy.moved
    place.last, place.sampled_at = seen, now
    if place.proxy.moved or not seen.active:
        place.moved = now
    return place.proxy.moved and seen.active
