"""The verdicts that a store remembers, one for each time that a machine was accused, and how people call them."""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli import time_format
from cli.config import located, open_place
from cli.terminal import safe, say
from detector.alerts.alert import IncidentTracker, ends_first
from detector.model.verdict import RANK
from detector.service.verdict_rows import verdict_of
from store.schema.contract import Store, StoreError
from store.schema.time import LATEST

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from detector.model.verdict import Verdict

RECENT = 20


@dataclass(frozen=True, slots=True)
class Told:
    """All that was said of a machine of a task from the first word until it was cleared."""

    number: int
    """In order of time, from 1; older verdicts that the store has let go of are not counted."""
    said: tuple[Verdict, ...]
    """Growing worse; not the word that cleared it."""
    over: int | None
    """When it was closed, Unix ns ..."""
    end: str = ""
    """... and in which words."""
    orders: tuple[tuple[int, str], ...] = ()
    """What the operator ordered of the machine meanwhile: when (Unix ns), and in words."""

    @property
    def verdict(self) -> Verdict:
        """The gravest, of several the last."""
        return max(self.said, key=lambda verdict: (RANK[verdict.level], verdict.time))

    @property
    def name(self) -> str:
        """As a person can write it whatever else the store holds: `2026-05-01T12:00:03/m03`."""
        return f"{time_format.shown(self.said[0].time).replace(' ', 'T')}/{self.verdict.machine}"


def told(verdicts: Iterable[Verdict]) -> list[Told]:
    """Verdicts in order of time, each with what was said later of the same machine and task."""
    still: dict[tuple[str, str], list[Verdict]] = {}
    ended: list[tuple[list[Verdict], int | None, str]] = []
    for verdict in verdicts:
        key = verdict.task, verdict.machine
        if verdict.level == "ok":
            if key in still:
                ended.append((still.pop(key), verdict.time, verdict.message))
        else:
            still.setdefault(key, []).append(verdict)
    ended += [(said, None, "") for said in still.values()]
    ended.sort(key=lambda one: (one[0][0].time, one[0][0].machine))
    return [Told(number, tuple(said), over, end) for number, (said, over, end) in enumerate(ended, 1)]


def with_orders(store: Store, one: Told) -> Told:
    """With what the operator ordered of its machine, from the first word on until it was closed."""
    if "event" not in store.tables():
        return one
    rows = store.read("event", one.said[0].time - 1, one.over or LATEST, ("device", "message")).to_pylist()
    mine = [row for row in rows if row["machine"] == one.verdict.machine and row["source"] == "operator"]
    return replace(one, orders=tuple((row["time"], _order_words(row)) for row in mine))


def _order_words(row: Mapping[str, Any]) -> str:
    code = str(row["code"])
    what = {"ack": "acknowledged", "clear": "closed", "maintenance_end": "maintenance ended"}.get(code, code)
    device, reason = row.get("device"), row.get("message")
    return f"the operator: {what}{f' ({device})' if device else ''}{f': {reason}' if reason else ''}"


def read_told(store: Store, place: str) -> list[Told]:
    """What the store's own verdicts say; a recording that was never judged is replayed. Raises StoreError."""
    from store.recording import Recording

    rows = store.read("verdict").to_pylist()
    if rows or not isinstance(store, Recording):
        return told(verdict_of(row) for row in rows if row.get("level") in RANK)
    from detector.engine import pipeline

    say(f"{place} holds no verdict: it is replayed first", err=True)
    return told(pipeline.replay(store))


def pick(found: list[Told], word: str, place: str) -> Told:
    """The verdict that is meant: by number, an alert's key, `TIME/MACHINE`, or a machine, whose last one it is.

    Raises StoreError.
    """
    if not found:
        raise StoreError(f"{place} holds no verdict: nobody stood out, or no detector ran (peerwatch detector)")
    number, (when, _, machine) = re.fullmatch(r"#?(\d{1,9})", word), word.rpartition("/")
    if number:
        mine = [one for one in found if one.number == int(number[1])]
    elif re.fullmatch(r"[0-9a-f]{16}", word) and (keyed := of_incident(found, word)):
        mine = keyed
    else:
        moment = time_format.moment(when) // 10**9 if when else None
        mine = [
            one
            for one in found
            if one.verdict.machine == machine and moment in (None, *(said.time // 10**9 for said in one.said))
        ]
    if not mine:
        last = found[-1]
        raise StoreError(f"{place} has no verdict {word}: name one of 1 to {last.number}, or such as {last.name}")
    return mine[-1]


def of_incident(found: list[Told], key: str) -> list[Told]:
    """What belongs to the incident of which alerts carry this key; several where it was over for a short while."""
    incidents, keys = IncidentTracker(), dict[tuple[str, str, int], str]()
    ends = (replace(one.verdict, time=one.over, level="ok") for one in found if one.over is not None)
    for verdict in ends_first([*(verdict for one in found for verdict in one.said), *ends]):
        if alert := incidents.record(verdict):
            keys[verdict.task, verdict.machine, verdict.time] = alert.incident
    first = {one.number: one.said[0] for one in found}
    return [one for one in found if keys[one.verdict.task, one.verdict.machine, first[one.number].time] == key]


def complete(begun: str, store: str | None = None, config: Path | None = None) -> list[tuple[str, str]]:
    """Numbers of recent verdicts for the shell, with their words; none where the store cannot be asked."""
    try:
        place, settings = located(store, config)
        with closing(open_place(place, settings=settings)) as source:
            rows = source.read("verdict").to_pylist()
    except (OSError, ValueError):
        return []
    recent = told(verdict_of(row) for row in rows if row.get("level") in RANK)[-RECENT:]
    named = ((str(one.number), safe(one.verdict.message)) for one in reversed(recent))
    return [(number, message) for number, message in named if number.startswith(begun)]
