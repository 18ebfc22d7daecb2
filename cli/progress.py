"""A progress bar over a span of data time, for people only: nothing is shown where standard error is no terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress(what: str, span: tuple[int, int]) -> Iterator[Callable[[int], None]]:
    """Gives a function to be told up to which time (Unix ns) the work is done."""
    from rich.console import Console
    from rich.progress import Progress

    first, last = span
    with Progress(console=Console(stderr=True), transient=True, disable=not Console(stderr=True).is_terminal) as bar:
        task = bar.add_task(what, total=max(1, last - first))
        yield lambda until: bar.update(task, completed=min(until, last) - first)
