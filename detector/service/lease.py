"""Lease: of several detectors on one store the one that holds the term speaks.

The store may be without compare-and-swap (InfluxDB), and clocks of machines differ. So, as Kubernetes elects leaders,
no detector compares clocks: a watcher times on its own clock for how long the holder's row has not changed, and a
holder times for how long its last look at the store is good. Ties are settled by looking: a claim is a row of the next
term; who finds its own row first in rank after SETTLE_S holds the term. Any detector that still spoke when the claim
was written has fallen silent by then, since no look is good for longer than HOLD_S.
https://pkg.go.dev/k8s.io/client-go/tools/leaderelection
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from store.schema.contract import Store, StoreError
from store.schema.sample import Batch, Sample
from store.schema.time import LATEST, SECOND

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

BEAT_S = 2.0
"""How often a holder renews, and a watcher looks."""
HOLD_S = 8.0
"""For so long after a look at the store that found it first a holder may speak."""
SETTLE_S = 8.5
"""A claim becomes the term after this; longer than HOLD_S, so that who held it before is silent."""
TAKEOVER_S = 10.0
"""A row that has not changed for so long is a dead holder's."""
TERM_NS = 6 * 3600 * SECOND
"""A holder begins a new term after this: a server refuses rows older than it keeps."""


class LeaseLostError(Exception):
    """Another detector holds the term: this one may not speak."""


class LeaseUnconfirmedError(Exception):
    """The store has not confirmed the term for HOLD_S: this detector may not speak until it does."""


@dataclass(frozen=True, slots=True)
class Term:
    """A row of the table `lease`; times are Unix ns of the holder's clock."""

    time: int
    machine: str
    holder: str
    term: int
    beat: int
    until: int

    @property
    def order(self) -> tuple[int, bool, tuple[int, ...], int]:
        """The greatest has the lease: of one term who holds it before who claims it, then the lowest name."""
        name = tuple(-ord(sign) for sign in self.holder)
        return self.term, self.beat > 0, name, self.beat

    def batch(self) -> Batch:
        """The row."""
        values: dict[str, Any] = {"holder": self.holder, "term": self.term, "beat": self.beat, "until": self.until}
        return Batch(self.machine, self.time, (Sample("lease", values),))


def current(store: Store) -> Term | None:
    """The term in force, or claimed where none is. Raises StoreError."""
    rows = store.read("lease").to_pylist()
    terms = [
        Term(row["time"], row["machine"], row["holder"], row["term"], row["beat"], row["until"] or 0)
        for row in rows
        if row.get("holder") and row.get("term") and row.get("beat") is not None
    ]
    return max(terms, key=lambda one: one.order, default=None)


def _boot_s() -> float:
    """Seconds of a clock that no one sets, and that goes on while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Lease:
    """This detector's part in the election; `step` looks at the store once, `held` says whether it may speak."""

    def __init__(self, store: Store, clock: Callable[[], float] = _boot_s) -> None:
        self.store, self.clock = store, clock
        self.machine = socket.gethostname()
        self.holder = f"{self.machine}-{os.getpid()}-{secrets.token_hex(4)}"
        self.term = 0
        """The term that it holds; 0: none."""
        self.other: Term | None = None
        """The term of another detector, as last seen."""
        self._claimed = self._confirmed = float("-inf")
        self._claimed_term = 0
        self._seen: Term | None = None
        self._seen_at = self._looked_at = clock()

    def held(self) -> bool:
        """Whether this detector may speak now."""
        return self.term > 0 and self.clock() < self._confirmed + HOLD_S

    def step(self) -> None:
        """Look at the store; claim, hold, renew or lose the term by what is there. Raises StoreError."""
        begun = self.clock()
        found = current(self.store)
        # What happened while the store could not be read is unknown: the holder gets its time again.
        if found != self._seen or begun - self._looked_at > HOLD_S:
            self._seen, self._seen_at = found, begun
        self._looked_at = self.clock()
        if found is not None and found.holder == self.holder:
            self._go_on(found, begun)
            return
        self.term, self.other = 0, found
        if found is None or not found.until or begun - self._seen_at > TAKEOVER_S:
            self._claim(found)

    def give_back(self) -> None:
        """Let another detector claim the next term at once. Raises StoreError."""
        found = current(self.store) if self.held() else None
        self.term = 0
        if found is not None and found.holder == self.holder:
            self.store.write([replace(found, beat=found.beat + 1, until=0).batch()])

    def _claim(self, found: Term | None) -> None:
        now = time.time_ns()
        claim = Term(now, self.machine, self.holder, found.term + 1 if found else 1, 0, self._until(now))
        self.store.write([claim.batch()])
        self._claimed, self._claimed_term = self.clock(), claim.term

    def _go_on(self, mine: Term, begun: float) -> None:
        """The first row is this detector's: wait until the claim has settled, then hold and renew it."""
        if mine.term != self._claimed_term:  # a row that was given up as lost has arrived: it counts from now
            self._claimed, self._claimed_term = self.clock(), mine.term
        if begun - self._claimed < SETTLE_S:
            return
        self.other = None
        self.term, self._confirmed = mine.term, begun
        now = time.time_ns()
        new = replace(mine, beat=mine.beat + 1, until=self._until(now))
        if abs(now - mine.time) > TERM_NS:
            new = replace(new, time=now, term=mine.term + 1)
        self.store.write([new.batch()])
        if self.held():
            self.term = self._claimed_term = new.term

    def _until(self, now: int) -> int:
        return now + round(TAKEOVER_S * SECOND)


class LeaseThread:
    """Steps a lease each BEAT_S in a thread of its own, so that a long step of the detector loses nothing."""

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self._stop = threading.Event()
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop, and give the term back where the store can be written."""
        self._stop.set()
        self._thread.join(HOLD_S)
        if self._thread.is_alive():  # its store hangs; the term lapses by itself
            return
        try:
            self.lease.give_back()
        except StoreError as error:
            log.warning("the lease could not be given back, so another detector waits %d s: %s", TAKEOVER_S, error)
        self.lease.store.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.lease.step()
                self._failing = False
            except StoreError as error:
                if not self._failing:
                    log.error("the lease cannot be renewed, trying again: %s", error)
                self._failing = True
            self._stop.wait(BEAT_S)


class Fenced:
    """A store that takes writes only while the lease is held."""

    def __init__(self, store: Store, lease: Lease) -> None:
        self.store, self.lease = store, lease

    def write(self, batches: Iterable[Batch]) -> None:
        """Store these batches. Raises StoreError, LeaseLostError and LeaseUnconfirmedError."""
        if not self.lease.term:
            raise LeaseLostError
        if not self.lease.held():
            raise LeaseUnconfirmedError
        self.store.write(batches)

    def read(self, table: str, after: int = 0, until: int = LATEST, columns: Collection[str] | None = None) -> pa.Table:
        """Rows with after < time <= until; the contract has the details."""
        return self.store.read(table, after, until, columns)

    def span(self, after: int = 0) -> tuple[int, int] | None:
        """Times of the oldest and the newest row later than `after`."""
        return self.store.span(after)

    def tables(self) -> tuple[str, ...]:
        """Names of the tables that are there."""
        return self.store.tables()

    def close(self) -> None:
        """Let go of the store."""
        self.store.close()
