"""Briefing: explains alerts in a thread of its own; no alert waits longer than PATIENCE_S for it."""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from detector.alerts.alert import Alert
from detector.alerts.brief import Brief, Number
from detector.alerts.past_incidents import earlier
from detector.model.text import quantity
from detector.model.verdict import Verdict
from store.schema.catalogue import METRICS, TABLES
from store.schema.time import LATEST, SECOND

if TYPE_CHECKING:
    from collections.abc import Collection

    import pyarrow as pa

    from detector.explain.difference import MetricShift
    from detector.explain.explanation import Explanation
    from store.schema.contract import Store

log = logging.getLogger(__name__)

Notes = Callable[["Store", Verdict], tuple[str, ...]]
"""Sentences on a verdict, from the store."""
PATIENCE_S = 10.0
"""The longest that an alert waits for its brief, in seconds."""
MOST_ASKED = 8
"""Most requests that wait; in a flood of incidents further alerts go out without a brief."""
MOST_REMEMBERED = 1000
_BEFORE_S, _AFTER_S, _GUARD_S = 30.0, 30.0, 15.0
_NUMBERS = 4
_WORD = 100
_PLAIN = ("hertz", "bits per second", "bytes", "watts", "celsius", "ratio")
"""Units that people understand at once, the clearest first; they come before counts and bit masks."""


@dataclass
class Excerpt:
    """A store's readings from half a minute before the onset to the verdict: all of a large fleet take too long."""

    store: Store
    spans: tuple[tuple[int, int], ...]

    def read(self, table: str, after: int = 0, until: int = LATEST, columns: Collection[str] | None = None) -> pa.Table:
        """Rows of a compared table within the spans; all rows of other tables."""
        import pyarrow as pa

        if table in TABLES and not TABLES[table].compared:
            return self.store.read(table, after, min(until, self.spans[-1][1]), columns)
        parts = [(max(after, low), min(until, high)) for low, high in self.spans]
        found = [self.store.read(table, low, high, columns) for low, high in parts if low < high]
        if not found:
            return self.store.read(table, after, after, columns)
        return pa.concat_tables(found, promote_options="default")

    def span(self, after: int = 0) -> tuple[int, int] | None:
        """Times of the oldest and the newest row later than `after`."""
        found = self.store.span(after)
        return (found[0], min(found[1], self.spans[-1][1])) if found else None

    def tables(self) -> tuple[str, ...]:
        """Names of the tables in the store."""
        return self.store.tables()


class Briefing:
    """Explains verdicts from a store that `open_store` opens; without it briefs are empty. `more` adds notes."""

    def __init__(self, open_store: Callable[[], Store] | None = None, more: Notes = lambda store, verdict: ()) -> None:
        self._open, self._more = open_store, more
        self._asked: dict[str, tuple[float, Future[Brief]]] = {}
        self._todo: queue.Queue[tuple[Verdict, Future[Brief]] | None] = queue.Queue(MOST_ASKED)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def ask(self, alert: Alert) -> None:
        """Request the brief of this alert; returns at once."""
        if self._open is None:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="briefing", daemon=True)
            self._thread.start()
        answer: Future[Brief] = Future()
        try:
            self._todo.put_nowait((alert.verdict, answer))
        except queue.Full:
            return
        with self._lock:
            self._asked.pop(alert.incident, None)
            self._asked[alert.incident] = time.monotonic(), answer
            while len(self._asked) > MOST_REMEMBERED:
                self._asked.pop(next(iter(self._asked)))

    def enrich(self, alert: Alert) -> Alert:
        """The alert with its brief, after at most PATIENCE_S since the request. Called by the sinks' threads."""
        with self._lock:
            begun, answer = self._asked.get(alert.incident, (0.0, None))
        if answer is None:
            return alert
        try:
            return replace(alert, brief=answer.result(max(0.0, begun + PATIENCE_S - time.monotonic())))
        except TimeoutError:
            return alert

    def close(self) -> None:
        """Stop the thread after its current request."""
        while not self._todo.empty():
            self._drop()
        if self._thread is not None:
            self._todo.put(None)

    def _drop(self) -> None:
        try:
            left = self._todo.get_nowait()
        except queue.Empty:
            return
        if left is not None:
            left[1].set_result(Brief())

    def _work(self) -> None:
        assert self._open is not None
        while (one := self._todo.get()) is not None:
            verdict, answer = one
            try:
                with closing(self._open()) as store:
                    brief = brief_of(store, verdict)
                answer.set_result(replace(brief, notes=(*brief.notes, *self._more(store, verdict))))
            except Exception as error:  # the alert must go out even if its brief fails
                known = isinstance(error, OSError)
                log.warning(
                    "the alert about %s goes out without its cause: %s",
                    verdict.machine,
                    error,
                    exc_info=None if known else error,
                )
                answer.set_result(Brief())


def brief_of(store: Store, verdict: Verdict) -> Brief:
    """The brief of a verdict from the readings in the store now. Raises StoreError."""
    from detector.explain.explanation import explain

    since = min(verdict.since or verdict.time, verdict.time)
    low, high = (round(bound * SECOND) for bound in (_GUARD_S + _BEFORE_S, _GUARD_S))
    near = max(since, verdict.time - round(_AFTER_S * SECOND)), verdict.time + round(_AFTER_S * SECOND)
    found = explain(Excerpt(store, ((since - low, since - high), near)), verdict)
    kind = found.likely.kind
    known = bool(found.likely.signs)
    hardware = identity(store, verdict.machine, verdict.device, since)
    name, words = (kind.name, kind.words) if known else ("", "")
    past = earlier(store, verdict, since)
    notes = (past.words,) if past.words else ()
    return Brief(name, words, kind.advice, notes, numbers(found), found.peers, hardware, past.as_json())


def numbers(found: Explanation) -> tuple[Number, ...]:
    """The most relevant readings: the indicators of the likely kind of fault, then the metric of the verdict."""
    signs = [*found.likely.signs, f"{found.verdict.metric}+", f"{found.verdict.metric}-"]
    mine = [one for one in found.moved if one.sign in signs and math.isfinite(one.value) and math.isfinite(one.usual)]
    mine.sort(key=lambda one: (_plain(one.key) == len(_PLAIN), one.sign not in found.likely.kind.tell, _plain(one.key)))
    return tuple(_number(one, found.verdict.device) for one in mine[:_NUMBERS])


def identity(store: Store, machine: str, device: str | None, at: int) -> dict[str, str]:
    """UUID, serial number and PCI address of a GPU, as last read before or soon after `at` (Unix ns)."""
    table, _, name = (device or "").partition(":")
    names = ("uuid", "serial", "pci_address")
    if table != "gpu" or not name:
        return {}
    rows = store.read("gpu", at - round(60 * SECOND), at + round(30 * SECOND), names).to_pylist()
    mine = (row for row in rows if row["machine"] == machine and row.get("gpu") == name)
    return {column: str(row[column])[:_WORD] for row in mine for column in names if row.get(column)}


def _plain(key: str) -> int:
    """The rank of a metric's unit."""
    return _PLAIN.index(METRICS[key].unit) if key in METRICS and METRICS[key].unit in _PLAIN else len(_PLAIN)


def _number(moved: MetricShift, device: str | None) -> Number:
    metric = METRICS.get(moved.key)
    what = metric.help.split(":")[0].split(" (")[0] if metric else moved.key
    where = f"{moved.device} " if moved.device and moved.device != device else ""
    mine, usual = quantity(moved.value, metric), quantity(moved.usual, metric)
    was = quantity(moved.before, metric) if math.isfinite(moved.before) else ""
    text, unit = f"{where}{what} {mine}, peers {usual}", metric.unit if metric else ""
    return Number(moved.key, moved.device, *(moved.value, moved.before, moved.usual), unit, text, was)
