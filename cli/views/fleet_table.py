"""The table of machines in `status` and in the live view."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cli import time_format
from cli.queries.fleet_status import FleetStatus

if TYPE_CHECKING:
    from rich.table import Table

STYLE = {"ok": "green", "warn": "yellow", "crit": "bold red", "unknown": "magenta"}
_GAP = 2


HEADS = {
    "evidence": ("evidence", 1.0),
    "cpu_ratio": ("cpu %", 100.0),
    "memory_ratio": ("memory %", 100.0),
    "gpu_busy_ratio": ("GPU busy %", 100.0),
    "gpu_watts": ("GPU W", 1.0),
    "gpu_clock_hertz": ("GPU GHz", 1e-9),
    "operations_per_second": ("NCCL ops/s", 1.0),
    "iteration_seconds": ("iteration s", 1.0),
    "waiting_ratio": ("waiting %", 100.0),
    "active_ratio": ("active %", 100.0),
    "sending_ratio": ("sending %", 100.0),
}
"""Reading -> column head and factor of the shown value."""


FIRST = (
    "evidence",
    "iteration_seconds",
    "waiting_ratio",
    "active_ratio",
    "sending_ratio",
    "gpu_clock_hertz",
    "gpu_watts",
)
"""The columns that a narrow terminal shows first: they identify a straggler."""


def table(found: FleetStatus, width: int) -> tuple[Table, list[str]]:
    """One row per machine with the key readings that fit in `width` columns, and the heads of those left out."""
    from rich.table import Table
    from rich.text import Text

    names = list(dict.fromkeys(name for machine in found.machines.values() for name in machine.readings))
    columns = [["machine", *found.machines], ["is", *(machine.level for machine in found.machines.values())]]
    columns.append(["read", *(f"{time_format.ago(machine.age_s)} ago" for machine in found.machines.values())])
    for name in names:
        head, scale = HEADS.get(name, (name.replace("_", " "), 1.0))
        cells = (machine.readings.get(name) for machine in found.machines.values())
        columns.append([head, *("" if cell is None else _figure(cell * scale) for cell in cells)])
    ranks = [-1, -1, -1, *(FIRST.index(name) if name in FIRST else len(FIRST) for name in names)]
    fit = fitting(columns, ranks, width)
    heads, *rows = zip(*fit, strict=True)
    live_display = Table(box=None, pad_edge=False)
    for at, head in enumerate(heads):
        live_display.add_column(Text(head), justify="right" if at > 1 else "left", no_wrap=True)
    for name, level, *rest in rows:
        live_display.add_row(Text(name), Text(level, STYLE[level]), *rest)
    there = {head.replace("\n", " ") for head in heads}
    return live_display, [column[0] for column in columns if column[0] not in there]


def fitting(columns: list[list[str]], ranks: list[int], width: int) -> list[list[str]]:
    """All columns if they fit; else one word per line in heads, and the columns of the lowest ranks that fit, in order.

    Columns of rank -1 always stay; no column is cut.
    """
    if sum(max(map(len, column)) + _GAP for column in columns) - _GAP <= width:
        return columns
    narrow = [[head.replace(" ", "\n"), *cells] for head, *cells in columns]
    sizes = [max(len(line) for cell in column for line in cell.split("\n")) + _GAP for column in narrow]
    chosen, left = [], width + _GAP
    for at in sorted(range(len(narrow)), key=lambda at: ranks[at]):
        if ranks[at] < 0 or sizes[at] <= left:
            chosen.append(at)
            left -= sizes[at]
    return [narrow[at] for at in sorted(chosen)]


def _figure(value: float) -> str:
    """Three significant digits, or an integer."""
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
