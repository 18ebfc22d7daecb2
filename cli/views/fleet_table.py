"""The table of machines that `status` and the live view draw."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cli import time_format
from cli.queries.fleet_status import Standing

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
"""How a reading is headed, and what it is multiplied by."""


FIRST = (
    "evidence",
    "iteration_seconds",
    "waiting_ratio",
    "active_ratio",
    "sending_ratio",
    "gpu_clock_hertz",
    "gpu_watts",
)
"""What a narrow terminal shows rather than the rest: by these a straggler is told."""


def table(found: Standing, width: int) -> tuple[Table, list[str]]:
    """One row a machine, with as many key readings as `width` columns hold; and the heads of those left out."""
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
    picture = Table(box=None, pad_edge=False)
    for at, head in enumerate(heads):
        picture.add_column(Text(head), justify="right" if at > 1 else "left", no_wrap=True)
    for name, level, *rest in rows:
        picture.add_row(Text(name), Text(level, STYLE[level]), *rest)
    there = {head.replace("\n", " ") for head in heads}
    return picture, [column[0] for column in columns if column[0] not in there]


def fitting(columns: list[list[str]], ranks: list[int], width: int) -> list[list[str]]:
    """All columns where they fit; else heads a word a line, and in their order those of the lowest ranks that fit.

    Columns of rank -1 are there in any case; none is cut.
    """
    if sum(max(map(len, column)) + _GAP for column in columns) - _GAP <= width:
        return columns
    narrow = [[head.replace(" ", "\n"), *cells] for head, *cells in columns]
    sizes = [max(len(line) for cell in column for line in cell.split("\n")) + _GAP for column in narrow]
    kept, left = [], width + _GAP
    for at in sorted(range(len(narrow)), key=lambda at: ranks[at]):
        if ranks[at] < 0 or sizes[at] <= left:
            kept.append(at)
            left -= sizes[at]
    return [narrow[at] for at in sorted(kept)]


def _figure(value: float) -> str:
    """Three digits, or whole numbers."""
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
