"""The verdicts in a store, one record for each fault of a machine, and the names by which users pick one."""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli import time_format
from cli.config import locate_store, open_place
from cli.queries.fleet_status import last_seen
from cli.terminal import safe, say
from detector.alerts.alert import IncidentTracker, ends_first
from detector.model.verdict import RANK
from detector.model.verdict_rows import verdict_of
from store.schema.contract import Store, StoreError
from store.schema.time import LATEST

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from detector.model.verdict import Verdict

RECENT = 20
CLOSING_NS = 30 * 10**9
"""An incident that ends within this time after the operator's action was ended by it."""
READ_NS = 3600 * 10**9
"""A machine without a reading for this long before the end of its incident has not recovered: it is gone."""


@dataclass(frozen=True, slots=True)
class VerdictRecord:
    """All verdicts on one machine of one task from the first until the one that closes them."""

    number: int
    """Position in time order, from 1, among the verdicts that the store still has."""
    verdicts: tuple[Verdict, ...]
    """In order of time, without the closing one of level ok."""
    closed: int | None
    """Time of the closing verdict, Unix ns; None while it is open."""
    closing_message: str = ""
    actions: tuple[tuple[int, str], ...] = ()
    """The operator's actions on the machine while it was open: time (Unix ns) and description."""
    outcome: str = "closed"
    """How it was closed: `resolved`, `closed by the operator`, or `closed without readings`."""

    @property
    def verdict(self) -> Verdict:
        """The one of the worst level; of several the last."""
        return max(self.verdicts, key=lambda verdict: (RANK[verdict.level], verdict.time))

    @property
    def name(self) -> str:
        """A name that stays valid when older verdicts expire: `2026-05-01T12:00:03/m03`."""
        return f"{time_format.shown(self.verdicts[0].time).replace(' ', 'T')}/{self.verdict.machine}"


def group_verdicts(verdicts: Iterable[Verdict]) -> list[VerdictRecord]:
    """Group verdicts (in order of time) by task and machine, from the first of level warn or crit until ok."""
    pending: dict[tuple[str, str], list[Verdict]] = {}
    groups: list[tuple[list[Verdict], int | None, str]] = []
    for verdict in verdicts:
        key = verdict.task, verdict.machine
        if verdict.level == "ok":
            if key in pending:
                groups.append((pending.pop(key), verdict.time, verdict.message))
        else:
            pending.setdefault(key, []).append(verdict)
    groups += [(group, None, "") for group in pending.values()]
    groups.sort(key=lambda entry: (entry[0][0].time, entry[0][0].machine))
    return [VerdictRecord(at, tuple(group), end, text) for at, (group, end, text) in enumerate(groups, 1)]


def with_operator_actions(store: Store, record: VerdictRecord) -> VerdictRecord:
    """The record with its outcome and the operator's actions on its machine while it was open."""
    begin, end = record.verdicts[0].time - 1, record.closed or LATEST
    there = "event" in store.tables()
    rows = store.read("event", begin, end, ("device", "message")).to_pylist() if there else []
    own = [row for row in rows if row["machine"] == record.verdict.machine and row["source"] == "operator"]
    actions = tuple((row["time"], _action_text(row)) for row in own)
    return replace(record, actions=actions, outcome=_outcome(store, record, own))


def _outcome(store: Store, record: VerdictRecord, actions: list[Mapping[str, Any]]) -> str:
    """How a record was closed; `actions` are the events of the operator on its machine."""
    if record.closed is None:
        return "open"
    if any(
        row["code"] in ("clear", "false_alarm", "maintenance") and record.closed - row["time"] < CLOSING_NS
        for row in actions
    ):
        return "closed by the operator"
    read = record.verdict.machine in last_seen(store, record.closed, READ_NS)
    return "resolved" if read else "closed without readings"


def _action_text(row: Mapping[str, Any]) -> str:
    code = str(row["code"])
    what = {
        "ack": "acknowledged",
        "clear": "closed",
        "false_alarm": "closed as a false alarm",
        "maintenance_end": "maintenance ended",
    }.get(code, code)
    device, reason = row.get("device"), row.get("message")
    return f"the operator: {what}{f' ({device})' if device else ''}{f': {reason}' if reason else ''}"


def read_verdicts(store: Store, place: str) -> list[VerdictRecord]:
    """The records of a store; a recording without verdicts is replayed first. Raises StoreError."""
    rows = store.read("verdict").to_pylist()
    if rows or not Path(place).is_dir():
        return group_verdicts(verdict_of(row) for row in rows if row.get("level") in RANK)
    from detector.engine import pipeline

    say(f"{place} holds no verdict: replaying it first", err=True)
    return group_verdicts(pipeline.replay(store))


def pick(records: list[VerdictRecord], word: str, place: str) -> VerdictRecord:
    """The record that `word` names: a number, the key of an alert, `TIME/MACHINE`, or a machine (its last record).

    Raises StoreError.
    """
    if not records:
        raise StoreError(f"{place} holds no verdict: no fault was found, or no detector ran (peerwatch detector)")
    number, (when, _, machine) = re.fullmatch(r"#?(\d{1,9})", word), word.rpartition("/")
    if number:
        matching = [record for record in records if record.number == int(number[1])]
    elif re.fullmatch(r"[0-9a-f]{16}", word) and (keyed := of_incident(records, word)):
        matching = keyed
    else:
        second = time_format.moment(when) // 10**9 if when else None
        matching = [
            record
            for record in records
            if record.verdict.machine == machine
            and second in (None, *(verdict.time // 10**9 for verdict in record.verdicts))
        ]
    if not matching:
        last = records[-1]
        raise StoreError(f"{place} has no verdict {word}: name one of 1 to {last.number}, or such as {last.name}")
    return matching[-1]


def of_incident(records: list[VerdictRecord], key: str) -> list[VerdictRecord]:
    """The records of the incident with this key; several where it ended and was reopened."""
    incidents, keys = IncidentTracker(), dict[tuple[str, str, int], str]()
    ends = (replace(record.verdict, time=record.closed, level="ok") for record in records if record.closed is not None)
    for verdict in ends_first([*(verdict for record in records for verdict in record.verdicts), *ends]):
        if alert := incidents.record(verdict):
            keys[verdict.task, verdict.machine, verdict.time] = alert.incident
    first = {record.number: record.verdicts[0] for record in records}
    return [
        record
        for record in records
        if keys[record.verdict.task, record.verdict.machine, first[record.number].time] == key
    ]


def complete(prefix: str, store: str | None = None, config: Path | None = None) -> list[tuple[str, str]]:
    """Numbers of recent verdicts with their messages for shell completion; none where the store cannot be read."""
    try:
        place, settings = locate_store(store, config)
        with closing(open_place(place, settings=settings)) as source:
            rows = source.read("verdict").to_pylist()
    except (OSError, ValueError):
        return []
    recent = group_verdicts(verdict_of(row) for row in rows if row.get("level") in RANK)[-RECENT:]
    named = ((str(record.number), safe(record.verdict.message)) for record in reversed(recent))
    return [(number, message) for number, message in named if number.startswith(prefix)]
