"""SharedLog: what each sink was sent, in the store, so that the detector that takes over repeats nothing."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from detector.alerts.alert import BLIND, Alert
from detector.model.verdict import RANK, Level, Verdict
from store.schema.contract import Store, StoreError
from store.schema.sample import Batch, Sample

log = logging.getLogger(__name__)

Reported = dict[str, tuple[Level, int]]
"""Incident -> the level at which it was reported, and when (Unix ns)."""


class DeliveryMemory(Protocol):
    """What a sink queue reads and writes beside its own file."""

    def load(self, sink: str) -> Reported | None:
        """The open incidents that the sink knows; None where the file alone counts."""

    def record(self, sink: str, alert: Alert, time: int) -> None:
        """Note that an alert was delivered or refused at `time` (Unix ns); returns soon, and raises nothing."""


class FileOnly:
    """One detector: the delivery log in its state folder is all there is."""

    def load(self, sink: str) -> Reported | None:
        """None: the file counts."""
        return None

    def record(self, sink: str, alert: Alert, time: int) -> None:
        """Nothing."""


@dataclass
class SharedLog:
    """The table `delivery` of a store that several detectors share; rows that cannot be written are tried again."""

    store: Store
    succeeds: bool = False
    """Whether another detector was here before, so that a sink without rows has been sent nothing."""
    blind: Verdict | None = None
    """The open incident of Peerwatch's own blindness that was reported last."""
    _known: dict[str, Reported] = field(default_factory=dict)
    _unwritten: list[Batch] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def read(self) -> None:
        """Take in what earlier detectors have delivered. Raises StoreError."""
        for row in self.store.read("delivery").to_pylist():
            incident, level, words = row.get("incident"), row.get("level"), row.get("message")
            if not incident or level not in RANK:
                continue
            open_ones = self._known.setdefault(row["sink"], {})
            open_ones.pop(incident, None)
            if level != "ok":
                open_ones[incident] = level, row["time"]
            if words:
                self._remember_blindness(words)

    def _remember_blindness(self, words: str) -> None:
        try:
            verdict = msgspec.json.decode(words, type=Verdict)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            log.warning("an alert on blindness in the store cannot be read, so it may be sent again: %s", error)
            return
        self.blind = None if verdict.level == "ok" else verdict

    def load(self, sink: str) -> Reported | None:
        """The open incidents that the sink knows."""
        found = self._known.get(sink)
        return dict(found or {}) if self.succeeds or found is not None else None

    def record(self, sink: str, alert: Alert, time: int) -> None:
        """Write a row where the level that the sink knows has changed."""
        level: Level = alert.verdict.level if alert.end is None else "ok"
        with self._lock:
            known = self._known.setdefault(sink, {})
            if known.get(alert.incident, ("ok", 0))[0] != level:
                self._unwritten.append(_row(sink, alert, level, time))
            if level == "ok":
                known.pop(alert.incident, None)
            else:
                known[alert.incident] = level, time
            if not self._unwritten:
                return
            try:
                self.store.write(self._unwritten)
                self._unwritten = []
            except StoreError as error:
                log.warning("what sink %s was sent is not in the store yet: %s", sink, error)


def _row(sink: str, alert: Alert, level: Level, time: int) -> Batch:
    about = msgspec.json.encode(alert.verdict).decode() if alert.verdict.kind == BLIND else ""
    values: dict[str, str | int | float | None] = {"sink": sink, "incident": alert.incident, "level": level}
    return Batch(alert.verdict.machine, time, (Sample("delivery", {**values, "message": about}),))
