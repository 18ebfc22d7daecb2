"""The newest row of each device of one machine, out of the batches on their way to the store."""

from __future__ import annotations

import threading
from collections import Counter

from store.exposition.family import INFO, SHOWN, Family, Row, families_of
from store.schema.catalogue import TABLES
from store.schema.sample import Batch, Sample
from store.schema.time import SECOND

FRESH_NS, REPEATED_NS = 30 * SECOND, 150 * SECOND
"""After so long a row is no longer exposed; the second is for tables that are written on change and once a minute."""
SERIES = 4096
"""Rows, and kinds of events, that are remembered: names in them come from outside."""

Key = tuple[str, tuple[str, ...]]


class LatestRows:
    """Written by the agent's loop and read by the threads that expose or send it."""

    def __init__(self, machine: str) -> None:
        self._machine = machine
        self._rows: dict[Key, Row] = {}
        self._events: Counter[tuple[str, str, str]] = Counter()
        self._time = 0
        self._lock = threading.Lock()

    def receive(self, batch: Batch) -> None:
        """Take over what a batch says."""
        with self._lock:
            self._time = batch.time
            for sample in batch.samples:
                if sample.table == "event":
                    self._count(sample)
                elif sample.table in SHOWN:
                    self._store(batch.time, sample)

    def families(self, now: int) -> list[Family]:
        """All metrics of the machine at `now` (Unix ns), without those that nothing has read lately."""
        with self._lock:
            self._rows = {key: row for key, row in self._rows.items() if now - row.time <= _fresh(key[0])}
            rows = [(table, row) for (table, _), row in self._rows.items()]
            events, time = dict(self._events), self._time
        found = families_of(self._machine, rows)
        counted = Family("peerwatch_events", "counter", "events, by source, code and severity (table event)")
        for (source, code, severity), count in events.items():
            about = {"machine": self._machine, "source": source, "code": code, "severity": severity}
            counted.add(about, count, time)
        read = Family("peerwatch_last_reading_timestamp_seconds", "gauge", "when the machine was last read, Unix time")
        read.add({"machine": self._machine}, time / SECOND, time)
        return [*found, *([counted] if events else []), *([read] if time else [])]

    def _store(self, time: int, sample: Sample) -> None:
        key = sample.table, tuple(str(sample.values.get(name) or "") for name in TABLES[sample.table].keys)
        before = self._rows.get(key)
        if before is None and len(self._rows) >= SERIES:
            return
        # What a GPU is called comes in every tenth row only.
        texts = {name: before.values[name] for name in INFO["gpu"] if name in before.values} if before else {}
        self._rows[key] = Row(time, {**texts, **sample.values})

    def _count(self, sample: Sample) -> None:
        source, code, severity = (str(sample.values.get(name) or "") for name in ("source", "code", "severity"))
        if len(self._events) < SERIES or (source, code, severity) in self._events:
            self._events[source, code, severity] += 1


def _fresh(table: str) -> int:
    return FRESH_NS if TABLES[table].compared or table == "source" else REPEATED_NS
