"""Tables on narrow screens: what has no room is left out and named."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from cli.views.columns import show_table

HEADS = ("communicator", "operation", "bytes", "total s")
ROWS = [("default_pg of ranks 0 to 15", "AllReduce", "26260000", "0.04676"), ("pipe", "Send", "4096", "1.854e-05")]


@pytest.mark.parametrize(("width", "left_out"), [(200, []), (58, ["bytes"]), (30, ["operation", "bytes"])])
def test_no_figure_is_cut(width: int, left_out: list[str]) -> None:
    """Lines fit the screen, figures that are shown are whole, and columns without room are named."""
    screen = Console(width=width, file=io.StringIO(), color_system=None)
    show_table(screen, HEADS, ROWS, ("total s", "operation"), ("operation",))
    text = screen.file.getvalue()  # type: ignore[attr-defined] # a StringIO
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    for at, head in enumerate(HEADS[1:], 1):
        assert all((row[at] in text) == (head not in left_out) for row in ROWS)
    said = " ".join(text.split()).partition("no room for ")[2].partition(":")[0]
    assert said == ", ".join(left_out)
