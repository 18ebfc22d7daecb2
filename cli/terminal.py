"""What people see: tables, and a progress bar over a span of data time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

_UNBROKEN = 1000


def console() -> Console:
    """Standard output; into a file or a pipe a row is one line, however long."""
    from rich.console import Console

    screen = Console()
    return screen if screen.is_terminal else Console(width=_UNBROKEN)


@contextmanager
def progress(what: str, span: tuple[int, int]) -> Iterator[Callable[[int], None]]:
    """Gives a function to be told up to which time (Unix ns) the work is done; silent where nobody looks."""
    from rich.console import Console
    from rich.progress import Progress

    first, last = span
    with Progress(console=Console(stderr=True), transient=True, disable=not Console(stderr=True).is_terminal) as bar:
        task = bar.add_task(what, total=max(1, last - first))
        yield lambda until: bar.update(task, completed=min(until, last) - first)
