"""The screen of `peerwatch top`: one row a machine, GPU or rank, with as many columns as fit and the last minute."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cli import time_format
from cli.queries.live_history import NAMES, LiveHistory
from cli.views.fleet_table import FIRST, HEADS, STYLE
from cli.views.top.state import HELP, LEVELS, TopState
from cli.views.zoom import block, scale_of
from store.schema.time import SECOND

if TYPE_CHECKING:
    from numpy.typing import NDArray

SILENT_NS = 30 * SECOND
_AROUND, _SPARK, _SPARK_MOST = 4, 10, 30
"""Lines of head and foot; blocks of a curve, at least and at most."""


def draw(state: TopState, history: LiveHistory, size: tuple[int, int], message: str = "") -> RenderableType:
    """The screen of `size` columns and lines; updates the rows of the state. `message` stands in the last line."""
    width, height = size
    if state.help:
        return _help()
    counts = ""
    if len(state.path) == 2:
        body = _ranks(state, history, height)
    else:
        found = _listing(state, history)
        counts = found.counts
        body = _entities(state, history, found, width, height)
    where = " > ".join(("fleet", *state.path))
    order = f"sorted by {state.sort.replace('_', ' ')}{' (reversed)' if state.reverse else ''}"
    head = Text(f"{where}  {counts}{order}", "bold", no_wrap=True, overflow="ellipsis")
    return Group(head, body, Text(_foot(state, message), "dim", no_wrap=True, overflow="ellipsis"))


def _foot(state: TopState, message: str) -> str:
    if state.typing:
        return f"filter: {state.filter}_"
    chosen = state.path or state.filter or state.only_odd or message
    empty = "nothing to show" if chosen else "no reading of the last 5 minutes: does the agent run?"
    parts = [f"{state.cursor + 1} of {len(state.rows)}" if state.rows else empty]
    parts += [f"filter {state.filter!r}"] if state.filter else []
    parts += ["only those not ok"] if state.only_odd else []
    parts += ["PAUSED"] if state.paused else []
    return ", ".join([*parts, *([message] if message else []), "? help, q quit"])


def _help() -> RenderableType:
    keys = Table.grid(padding=(0, 2))
    for key, what in HELP:
        keys.add_row(Text(key, "bold"), Text(what))
    words = "Values are means of the last 30 s; the curve is the last minute of the column in the order, else of power."
    return Group(Text("peerwatch top: keys", "bold"), keys, Text(words, "dim"))


@dataclass(frozen=True)
class _Listing:
    """Machines of the fleet, or GPUs of a machine; `order` are the places of those that are wanted."""

    names: list[str]
    places: NDArray[np.int64]
    levels: list[str]
    """Empty words for GPUs."""
    values: NDArray[np.float64]
    """[reading, entity]"""
    order: list[int]

    @property
    def counts(self) -> str:
        """The number of machines by level."""
        count = Counter(self.levels)
        return "".join(f"{count[level]} {level}, " for level in LEVELS if count[level])


def _listing(state: TopState, history: LiveHistory) -> _Listing:
    depth = len(state.path) + 1
    listed = [one for one in history.entities if len(one) == depth and one[:-1] == state.path]
    names = [one[-1] for one in listed]
    places = np.array([history.entities[one] for one in listed], np.int64)
    levels = history.levels(names, SILENT_NS) if depth == 1 and listed else [""] * len(listed)
    values = history.now(places) if listed else np.zeros((len(NAMES), 0))
    found = ordered(state, names, levels, values)
    if depth == 1:
        word = state.filter.lower()
        found = [at for at in found if word in names[at].lower() and not (state.only_odd and levels[at] == "ok")]
    return _Listing(names, places, levels, values, found)


def _entities(state: TopState, history: LiveHistory, found: _Listing, width: int, height: int) -> Table:
    """The rows in sight."""
    machines = not state.path
    state.show(tuple(found.names[at] for at in found.order), height - _AROUND)
    chosen = np.array(found.order[state.first : state.first + state.shown], np.int64)
    longest = max((len(found.names[at]) for at in chosen.tolist()), default=4)
    columns, blocks = fitting(state, found.values, max(longest, 7), width)
    table = _heads(machines, [HEADS[NAMES[at]][0] for at in columns])
    curves = history.curves(curve_of(state), found.places[chosen])
    for row, at in enumerate(chosen.tolist()):
        age = max(0, history.until - int(history.seen[found.places[at]])) / SECOND
        cells = [_figure(found.values[reading, at] * HEADS[NAMES[reading]][1]) for reading in columns]
        level = [Text(found.levels[at], STYLE[found.levels[at]])] if machines else []
        identity = [] if machines else [Text(history.identity.get((*state.path, found.names[at]), ""), "dim")]
        style = "reverse" if state.first + row == state.cursor else ""
        ends = sparks(curves[row], blocks), *identity
        table.add_row(Text(found.names[at]), *level, time_format.ago(age), *cells, *ends, style=style)
    return table


def _heads(machines: bool, readings: list[str]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    left = ["machine", "is"] if machines else ["GPU"]
    for name in left:
        table.add_column(Text(name), no_wrap=True)
    for name in ["read", *readings]:
        table.add_column(Text(name), no_wrap=True, justify="right")
    for name in ["last minute"] if machines else ["last minute", "identity"]:
        table.add_column(Text(name), no_wrap=True, overflow="ellipsis")
    return table


def ordered(state: TopState, names: list[str], levels: list[str], values: NDArray[np.float64]) -> list[int]:
    """The places of the rows in the order of the state: the worst or largest first, unknown values last."""
    natural = sorted(range(len(names)), key=lambda at: _natural(names[at]))
    if state.sort == "level":
        found = sorted(natural, key=lambda at: LEVELS.get(levels[at], 0))
    elif state.sort == "name":
        found = natural
    else:
        row = values[NAMES.index(state.sort)]
        known = [at for at in natural if not np.isnan(row[at])]
        known.sort(key=lambda at: row[at] if state.reverse else -row[at])
        return known + [at for at in natural if np.isnan(row[at])]
    return found[::-1] if state.reverse else found


def _natural(name: str) -> tuple[int, str]:
    return (int(name), "") if name.isdecimal() and len(name) < 10 else (-1, name)


def curve_of(state: TopState) -> int:
    """The reading of the curves: the one in the order, else the first that identifies a straggler."""
    return NAMES.index(state.sort) if state.sort in NAMES else NAMES.index("gpu_watts")


def fitting(state: TopState, values: NDArray[np.float64], name: int, width: int) -> tuple[list[int], int]:
    """The readings that fit beside the names, the one in the order first, and the blocks left for the curve."""
    ranked = [curve_of(state), *(NAMES.index(one) for one in FIRST if one in NAMES), *range(len(NAMES))]
    there = [at for at in dict.fromkeys(ranked) if not np.isnan(values[at]).all()]
    left = width - (name + 2) - (9 if not state.path else 2) - 8 - _SPARK
    chosen: list[int] = []
    for at in there:
        size = max(len(HEADS[NAMES[at]][0]), 5) + 2
        if size <= left:
            chosen.append(at)
            left -= size
    return sorted(chosen), min(_SPARK + max(left, 0), _SPARK_MOST)


def sparks(curve: NDArray[np.float64], most: int) -> Text:
    """A minute as blocks, from its least to its largest value; spaces where nothing was read."""
    parts = np.array_split(curve, min(most, len(curve)))
    means = [float(part[~np.isnan(part)].mean()) if (~np.isnan(part)).any() else np.nan for part in parts]
    known = [value for value in means if not np.isnan(value)]
    low, high = min(known, default=0.0), max(known, default=0.0)
    return Text("".join(block(value, low, scale_of(low, high)) for value in means))


def _ranks(state: TopState, history: LiveHistory, height: int) -> Table:
    """The communicators of a GPU, as they were read last."""
    heads = "slot", "rank", "communicator", "operation", "iteration s", "active %", "still s"
    table = Table(*heads, box=None, pad_edge=False)
    found = _newest(history, state.path)
    state.show(tuple(found), height - _AROUND)
    for slot in state.rows[state.first : state.first + state.shown]:
        row = found[slot]
        rank = f"{_figure(row['rank'])} of {_figure(row['ranks'])}"
        numbers = _figure(row["iteration_seconds"]), _figure(row["active_ratio"] * 100), _figure(row["still_seconds"])
        table.add_row(slot, rank, Text(str(row["comm"])[:16]), Text(str(row["operation"])), *numbers)
    return table


def _newest(history: LiveHistory, path: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Slot -> values of its last row."""
    rows, found = history.ranks, dict[str, dict[str, Any]]()
    if rows is None:
        return found
    for number, ident in enumerate(rows.idents):
        if ident[:2] == path and len(ident) > 2:
            last = int(np.flatnonzero(rows.ident == number)[-1])
            row: dict[str, Any] = {name: rows.text(name)[last] for name in ("comm", "operation")}
            for name in ("rank", "ranks", "iteration_seconds", "active_ratio", "still_seconds"):
                row[name] = float(rows.number(name)[last])
            found[ident[2]] = row
    return found


def _figure(value: float) -> str:
    """Three significant digits, or an integer; nothing where unknown."""
    if np.isnan(value):
        return ""
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
