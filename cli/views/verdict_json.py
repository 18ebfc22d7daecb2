"""The JSON object of a verdict and its explanation, as `show --json` prints it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from cli.views.verdict_text import timeline
from cli.views.zoom import rounded, zoom_json

if TYPE_CHECKING:
    from cli.queries.verdict_history import VerdictRecord
    from detector.explain.difference import MetricShift
    from detector.explain.explanation import Explanation


def heading_json(record: VerdictRecord) -> dict[str, Any]:
    """Number, name and verdict of a record; `over` is the time of its end (Unix ns), null while it is open."""
    return {"number": record.number, "name": record.name, **record.verdict.as_json(), "over": record.closed}


def explanation_json(record: VerdictRecord, explained: Explanation) -> dict[str, Any]:
    """The whole object: times in Unix ns, rates per second, effects in smallest significant differences."""
    likely, hang = explained.likely, explained.hang
    return {
        **heading_json(record),
        "peers": explained.peers,
        "begin": explained.begin,
        "end": explained.end,
        "likely": {
            "kind": likely.kind.name,
            "words": likely.kind.words,
            "signs": list(likely.signs),
            "advice": likely.kind.advice,
        },
        "moved": [_shift_json(shift) for shift in explained.moved],
        "runners_up": [asdict(other) | {"value": rounded(other.value)} for other in explained.runners_up],
        "gone": [{"table": table, "device": device, "last": last} for table, device, last in explained.gone],
        "timeline": [{"time": time, "what": what} for time, what in timeline(record, explained)],
        "communicators": [members.as_json() for members in hang.members],
        "odd_share": hang.odd_share or None,
        "stacks": [group.as_json() for group in hang.stacks],
        "closeups": [zoom_json(zoom) for zoom in explained.closeups],
    }


def _shift_json(shift: MetricShift) -> dict[str, Any]:
    names = ("machine", "peers_p10", "peers_p50", "peers_p90")
    curves = (shift.machine, *shift.band)
    return {
        "metric": shift.key,
        "device": shift.device,
        "effect": round(shift.effect, 2),
        **{name: rounded(getattr(shift, name)) for name in ("value", "before", "usual")},
        "peers": shift.peers,
        "onset": shift.onset,
        "devices_alike": shift.alike[0],
        "devices": shift.alike[1],
        "time": shift.time.tolist(),
        **{name: [*map(rounded, curve.tolist())] for name, curve in zip(names, curves, strict=True)},
    }
