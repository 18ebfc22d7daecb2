"""Reads NCCL's status (RAS) of the communicators of a task: ranks that do not answer, launched less, or failed.

It counts what was launched, so ranks that all hang in the same operation look alike.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

LEAST = (2, 29, 2)
"""NCCL answers in JSON since 2.28.7; before 2.29.2 missing ranks made it read foreign memory (nccl#1762)."""
_COMMUNICATORS, _NAMED, _TEXT = 32, 8, 600
_PAIRED = ("send", "recv")
_IN_PROGRESS = 7  # ncclInProgress (nccl.h): no error


class StatusError(Exception):
    """There is no status; the message says why."""


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank that answered."""

    name: str
    counts: dict[str, int]
    """Operations launched, by kind."""
    trouble: str


def communicators(text: bytes) -> Iterator[dict[str, Any]]:
    """A row of `ras` for each communicator, those first of which there is something to say. Raises StatusError."""
    try:
        status = json.loads(text)
        shared = {
            "version": _word(status["nccl_version"]),
            "collection_seconds": float(status["ras"]["collection_time_sec"]),
        }
        rows = [_row(one) | shared for one in status["communicators"]]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        raise StatusError("the answer cannot be understood") from None
    rows.sort(key=lambda row: not any(row[name] for name in ("missing", "behind", "failed")))
    yield from rows[:_COMMUNICATORS]


def _row(values: dict[str, Any]) -> dict[str, Any]:
    ranks = [_rank(rank) for rank in values["ranks"]]
    missing = [f"{_name(rank)} {_absence(rank['status'])}" for rank in values["missing_ranks"]]
    return {
        "comm": f"{int(values['hash'], 16):016x}",
        "ranks": float(values["size"]),
        "answered": float(len(ranks)),
        "missing": _list(missing),
        "behind": _list(_behind(ranks)),
        "failed": _list([f"{rank.name} {rank.trouble}" for rank in ranks if rank.trouble]),
    }


def _rank(values: dict[str, Any]) -> Rank:
    status = values["status"]
    words = [f"has the error {int(status['async_error'])}"] * (int(status["async_error"]) not in (0, _IN_PROGRESS))
    words += [f"is in state {int(status['init_state'])}"] * (int(status["init_state"]) not in (0, _IN_PROGRESS))
    words += ["was aborted"] * bool(status["abort_flag"])
    counts = {_word(kind): int(count) for kind, count in values["collective_counts"].items()}
    return Rank(_name(values), counts, " and ".join(words))


def _behind(ranks: list[Rank]) -> Iterator[str]:
    """The ranks that launched less of some kind than the first; Send and Recv differ between ranks by nature."""
    for kind in sorted({kind for rank in ranks for kind in rank.counts if not kind.lower().startswith(_PAIRED)}):
        front = max(rank.counts.get(kind, 0) for rank in ranks)
        for rank in ranks:
            if (count := rank.counts.get(kind, 0)) < front:
                yield f"{rank.name} launched {count} {kind}, the first {front}"


def _name(values: dict[str, Any]) -> str:
    return (
        f"rank {int(values['rank'])} ({_word(values['host'])} GPU {int(values['nvml_dev'])}, pid {int(values['pid'])})"
    )


def _absence(status: dict[str, Any]) -> str:
    return "is dead" if status["considered_dead"] else "does not answer" if status["unresponsive"] else "is missing"


def _list(found: Any) -> str | None:
    named = list(found)
    more = f"; and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
    return ("; ".join(named[:_NAMED])[:_TEXT] + more) or None


def _word(text: Any) -> str:
    return "".join(sign if sign.isprintable() else "?" for sign in str(text)[:60])
