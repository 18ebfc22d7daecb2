"""What was earlier: incidents of the last weeks from the verdicts in a store, and how often a fault has come before."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from detector.alerts.alert import Alert, IncidentTracker
from detector.model.verdict_rows import verdict_of
from store.schema.contract import ReadableStore
from store.schema.time import SECOND

if TYPE_CHECKING:
    from detector.model.verdict import Verdict

DAYS = 28
"""The window of Meta's study of lemon nodes (HPCA'25, arXiv 2410.21680)."""
DAY_NS = 86_400 * SECOND
_MOST_ROWS = 200_000
"""Of one table, the newest: an answer stays quick where a fleet has raised verdicts without end."""


@dataclass(frozen=True, slots=True)
class Cards:
    """Which card each GPU was, by (machine, gpu): times (Unix ns) of the changes, and the serial numbers from then."""

    times: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    serials: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    def serial(self, machine: str, device: str | None, time: int) -> str:
        """Serial number (or UUID) of a device's card at `time`; of one first seen later, that; empty if unknown."""
        table, _, gpu = (device or "").partition(":")
        times = self.times.get((machine, gpu), []) if table == "gpu" else []
        return self.serials[machine, gpu][max(0, bisect_right(times, time) - 1)] if times else ""


@dataclass(frozen=True, slots=True)
class Earlier:
    """Earlier incidents of a machine, or of its card, within `days` days before one of them."""

    times: int = 0
    """Incidents with the same reading at fault."""
    last: int | None = None
    """Onset of the last of these, Unix ns."""
    others: int = 0
    """Incidents with other readings at fault."""
    elsewhere: tuple[str, ...] = ()
    """Machines in which the same card had such incidents before."""
    days: int = DAYS

    @property
    def words(self) -> str:
        """A line; empty where there was none."""
        more = f"{self.others} other incident{'s' * (self.others != 1)}"
        if not self.times:
            return f"has not done this before, but had {more} in {self.days} days" if self.others else ""
        day = datetime.fromtimestamp((self.last or 0) // SECOND, timezone.utc).strftime("%Y-%m-%d %H:%M")
        count = "once" if self.times == 1 else f"{self.times} times"
        card = f" (the same card, then in {', '.join(self.elsewhere)})" if self.elsewhere else ""
        return f"has done this before: {count} in {self.days} days, last on {day} UTC{card}" + (
            f"; {more}" if self.others else ""
        )

    def as_json(self) -> dict[str, object]:
        """The object in alerts and `show --json`."""
        return {**asdict(self), "elsewhere": list(self.elsewhere)}


def read_incidents(store: ReadableStore, first: int, end: int) -> list[Alert]:
    """The incidents with a verdict in (first, end] (Unix ns), in order of their beginning. Raises StoreError."""
    columns = ("device", "kind", "metric", "score", "since", "level", "message")
    rows = _newest(store, "verdict", first, end, columns)
    verdicts = (verdict_of(row) for row in rows if row.get("level") in ("ok", "warn", "crit"))
    return sorted(IncidentTracker().restore(verdicts).values(), key=lambda one: (one.opened, one.verdict.machine))


def read_cards(store: ReadableStore, first: int, end: int) -> Cards:
    """The cards by the rows of (first, end] (Unix ns); none where no agent wrote any. Raises StoreError."""
    cards = Cards()
    for row in _newest(store, "card", first, end, ("serial", "uuid")):
        serial, place = str(row.get("serial") or row.get("uuid") or ""), (row["machine"], row["gpu"])
        mine = cards.serials.setdefault(place, [])
        if serial and mine[-1:] != [serial]:
            mine.append(serial)
            cards.times.setdefault(place, []).append(row["time"])
    return cards


def earlier(store: ReadableStore, verdict: Verdict, onset: int, days: int = DAYS) -> Earlier:
    """How often the machine of a verdict had incidents that ended before `onset` (Unix ns). Raises StoreError.

    One that was open at the onset is the same incident. A card that changed its place takes its incidents along, and
    leaves none behind.
    """
    first = onset - days * DAY_NS
    past = [one for one in read_incidents(store, first, onset) if one.end is not None]
    if not past:
        return Earlier(days=days)
    cards = read_cards(store, first, verdict.time) if verdict.device else Cards()
    mine = cards.serial(verdict.machine, verdict.device, verdict.time)
    same, others, elsewhere = list[int](), 0, dict[str, None]()
    for one in past:
        found = one.finding
        serial = cards.serial(found.machine, found.device, one.opened)
        here = found.machine == verdict.machine
        its_own = mine == serial if mine and serial else here and found.device == verdict.device
        if its_own and found.metric == verdict.metric:
            same.append(one.start)
            elsewhere |= {} if here else {found.machine: None}
        elif here or (mine and mine == serial):
            others += 1
    return Earlier(len(same), max(same, default=None), others, tuple(elsewhere), days)


def _newest(store: ReadableStore, table: str, first: int, end: int, columns: tuple[str, ...]) -> list[dict[str, Any]]:
    if table not in store.tables():
        return []
    rows = store.read(table, max(0, first), end, columns)
    found: list[dict[str, Any]] = rows.slice(max(0, rows.num_rows - _MOST_ROWS)).to_pylist()
    return found
