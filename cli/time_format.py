"""Times and durations in text: parsing of user input, formatting for output."""

from __future__ import annotations

import re
from datetime import datetime, timezone

from store.schema.time import LATEST

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_LONGEST_S = 36500 * 86400


def duration(text: str) -> int:
    """Nanoseconds of a duration such as 90s, 5m, 1.5h or 2d, a hundred years at most. Raises ValueError."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhdw])", text.strip())
    if not found:
        raise ValueError(f"{text!r} is not a duration: write for example 90s, 5m, 1.5h or 2d")
    seconds = float(found[1]) * _UNITS[found[2]]
    if seconds > _LONGEST_S:  # a later time would not fit the 64 bits of a store
        raise ValueError(f"{text!r} is too long: at most 100 years (36500d)")
    return round(seconds * 1e9)


def moment(text: str) -> int:
    """Unix nanoseconds of a time such as 2026-05-01T12:00, in UTC if it names no zone. Raises ValueError."""
    try:
        found = int(text) if re.fullmatch(r"[0-9]{1,25}", text) else _read(text)
    except ValueError as error:
        raise ValueError(
            f"{text!r} is not a time: write for example 2026-05-01T12:00 (UTC) or Unix nanoseconds"
        ) from error
    if not 0 <= found <= LATEST:
        raise ValueError(f"{text!r} is not a time between 1970 and 2262")
    return found


def point(text: str, now: int) -> int:
    """Unix nanoseconds of a time, or of a duration before `now`. Raises ValueError."""
    if re.fullmatch(r"\s*\d+(\.\d+)?\s*[a-z]\s*", text):
        return max(0, now - duration(text))
    return moment(text)


def _read(text: str) -> int:
    when = datetime.fromisoformat(text.strip().replace("Z", "+00:00"))
    if when.tzinfo is None:
        when = when.replace(tzinfo=timezone.utc)
    since = when - datetime(1970, 1, 1, tzinfo=timezone.utc)
    return (since.days * 86400 + since.seconds) * 10**9 + since.microseconds * 1000


def shown(time: int) -> str:
    """A time (Unix ns) in UTC, to the second."""
    return datetime.fromtimestamp(time // 10**9, timezone.utc).strftime("%Y-%m-%d %H:%M:%S")


def ago(seconds: float) -> str:
    """A duration in its largest unit of at least two."""
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
