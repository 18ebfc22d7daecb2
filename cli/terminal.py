"""Output to a terminal: escapes control characters in names from outside, in tables, lines, JSON and logs."""

from __future__ import annotations

import codecs
import json
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

_UNBROKEN = 1000
_OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
"""Characters that control a terminal: control codes, and marks that change the direction of text."""
_PLAIN = str.maketrans("▁▂▃▄▅▆▇█░▒▪═·×–—…µ°’“”→✓", '_.,-=+*#:%o=.x--.uo\'"">v')
"""Replacements of our symbols for terminals without Unicode."""
_ERRORS = "peerwatch.plain"


def safe(text: str, mark: str = "?") -> str:
    """The text with `mark` for each control character; line feeds and tabs stay."""
    return _OBEYED.sub(mark, text)


def say(text: object = "", err: bool = False) -> None:
    """Print a line."""
    stream = sys.stderr if err else sys.stdout
    stream.write(f"{safe(str(text))}\n")
    stream.flush()


def say_json(value: Any) -> None:
    """Print an object as one line of JSON; control characters become \\u escapes, so no information is lost."""
    line = json.dumps(value, ensure_ascii="utf" not in (sys.stdout.encoding or "").lower())
    say(_OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", line))


def console(err: bool = False) -> Console:
    """A console on standard output (or error) without markup; in a file or pipe each row is one line."""
    from rich.console import Console
    from rich.segment import Segment

    class Safe(Console):
        def render(self, renderable: Any, options: Any = None) -> Any:
            for part in super().render(renderable, options):
                # Control segments are Rich's own. Characters that Rich measures as zero columns wide are removed,
                # or tables would cut the text after them.
                yield part if part.control else Segment(safe(part.text, ""), part.style)

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # Rich would exit with 1, which means a warning in `status`

    plain: dict[str, Any] = {"markup": False, "emoji": False, "highlight": False, "stderr": err}
    screen = Safe(**plain)
    return screen if screen.is_terminal else Safe(width=_UNBROKEN, **plain)


@contextmanager
def progress(what: str, span: tuple[int, int]) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on a terminal; yields a function that takes the time (Unix ns) reached."""
    from rich.progress import Progress

    first, last = span
    screen = console(err=True)
    with Progress(console=screen, transient=True, disable=not screen.is_terminal) as bar:
        task = bar.add_task(safe(what), total=max(1, last - first))
        yield lambda until: bar.update(task, completed=min(until, last) - first)


class _Record(logging.LogRecord):
    def getMessage(self) -> str:  # noqa: N802 - logging's own name
        return safe(super().getMessage())


def guard() -> None:
    """Escape log records, and replace symbols that the terminal's encoding lacks; what is closed discards."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - it stays open as long as the program
    logging.setLogRecordFactory(_Record)
    codecs.register_error(_ERRORS, _replaced)
    for stream in (sys.stdout, sys.stderr):
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(errors=_ERRORS)


def _replaced(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end].translate(_PLAIN)
    return "".join(sign if sign.isascii() else "?" for sign in text), error.end


def hang_up() -> None:
    """The reader of the output has gone: discard what is still to be written."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
