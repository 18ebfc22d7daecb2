"""Tables of `peerwatch evaluate`: a column a method, figures with their 95 % intervals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

Figures = Mapping[str, Mapping[str, Any]]
ROWS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("recordings", ("recordings",)),
    ("precision, by recording", ("precision",)),
    ("recall", ("recall",)),
    ("F1", ("f1",)),
    ("precision, by fault", ("by_fault", "precision")),
    ("recall", ("by_fault", "recall")),
    ("F1", ("by_fault", "f1")),
    ("precision, by window", ("by_window", "precision")),
    ("recall", ("by_window", "recall")),
    ("F1", ("by_window", "f1")),
    ("right machine first", ("right_machine",)),
    ("right device", ("right_device",)),
    ("delay, median (s)", ("delay_median_s",)),
    ("delay, P90 (s)", ("delay_p90_s",)),
    ("false alarms per 1,000 healthy machine-hours", ("false_per_1000h",)),
    ("healthy machine-hours", ("machine_hours",)),
    ("false alarms on other machines during a fault", ("blamed",)),
    ("notes per machine-day", ("notes_per_machine_day",)),
    ("CPU time a step (ms)", ("step_ms",)),
    ("memory of the method (MB)", ("state_mb",)),
)
"""Label, and where the figure stands; its interval, if it has one, stands beside it under the same name and `_95`."""


def summary(found: Figures) -> Table:
    """All figures of each method."""
    from rich.table import Table

    table = Table("", *found, box=None, pad_edge=False)
    for label, cells in summary_rows(found):
        table.add_row(label, *cells)
    return table


def summary_rows(found: Figures) -> list[tuple[str, list[str]]]:
    """Labels and cells; figures that no method has are left out."""
    return [
        (label, [_shown(_at(figures, path)) + _range(figures, path) for figures in found.values()])
        for label, path in ROWS
        if path[0] != "by_window" or any(figures["by_window"] for figures in found.values())
    ]


def parts(title: str, key: str, found: Figures) -> Table:
    """Number of faults found and the median delay, for each kind of fault or fleet size."""
    from rich.table import Table

    table = Table(title, *found, box=None, pad_edge=False)
    for part in parts_of(key, found):
        table.add_row(part, *(_part(figures[key].get(part)) for figures in found.values()))
    return table


def parts_of(key: str, found: Figures) -> list[str]:
    """The kinds of fault, or the sizes, that any method has."""
    return sorted({part for figures in found.values() for part in figures[key]}, key=_in_order)


def _part(part: Mapping[str, Any] | None) -> str:
    if part is None:
        return "–"
    right, there = part.get("found", part.get("right")), part.get("faults", part.get("of"))
    delay = "" if part["delay_median_s"] is None else f" in {part['delay_median_s']:g} s"
    wrong = f", {part['wrong']} wrong" if part.get("wrong") else f", {part['blamed']} others" if part["blamed"] else ""
    return f"{right} of {there}{_ends(part.get('recall_95'))}{delay}{wrong}"


def _in_order(part: str) -> tuple[int, str]:
    return (int(part.split()[1]) + part.startswith("over"), "") if part.split()[-1].isdigit() else (0, part)


def _at(figures: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    value: Any = figures
    for key in path:
        value = None if value is None else value.get(key)
    return value


def _range(figures: Mapping[str, Any], path: tuple[str, ...]) -> str:
    return _ends(_at(figures, (*path[:-1], f"{path[-1]}_95")))


def _ends(ends: list[float] | None) -> str:
    return "" if ends is None else f" ({ends[0]:.3g}–{ends[1]:.3g})"


def _shown(value: Any) -> str:
    return "–" if value is None else f"{value:,g}" if isinstance(value, int | float) else str(value)
