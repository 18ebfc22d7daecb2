"""Tables that fit the terminal: columns that have no room are left out and named, no figure is cut."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from cli.terminal import safe

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_GAP = 2


def show_table(
    screen: Console,
    heads: Sequence[str],
    rows: Sequence[Sequence[str | Text]],
    first: Sequence[str] = (),
    left: Collection[str] = (),
) -> None:
    """Print the rows; on a narrow screen the first column, then those of `first`, then others while there is room.

    The first column may take half of the width and is wrapped there. Those in `left` are set left, numbers right.
    """
    from rich.table import Table
    from rich.text import Text

    cells = [[cell if isinstance(cell, Text) else Text(safe(cell)) for cell in row] for row in rows]
    ranks = [-1] + [first.index(head) if head in first else len(first) for head in heads[1:]]
    chosen = _chosen([[head, *(row[at].plain for row in cells)] for at, head in enumerate(heads)], ranks, screen.width)
    table = Table(box=None, pad_edge=False)
    for at in chosen:
        beside = at == 0 or heads[at] in left
        table.add_column(Text(heads[at]), justify="left" if beside else "right", no_wrap=at > 0, overflow="fold")
    for row in cells:
        table.add_row(*(row[at] for at in chosen))
    screen.print(table)
    if missing := [head for at, head in enumerate(heads) if at not in chosen and head]:
        screen.print(Text(f"no room for {', '.join(missing)}: widen the terminal, or --json", "dim"))


def _chosen(columns: Sequence[Sequence[str]], ranks: Sequence[int], width: int) -> list[int]:
    """The columns that fit, in order: the lowest ranks first."""
    sizes = [max(map(len, column)) + _GAP for column in columns]
    if sum(sizes) - _GAP > width:
        sizes[0] = min(sizes[0], width // 2)
    chosen, room = [], width + _GAP
    for at in sorted(range(len(columns)), key=lambda at: ranks[at]):
        if sizes[at] <= room:
            chosen.append(at)
            room -= sizes[at]
    return sorted(chosen)
