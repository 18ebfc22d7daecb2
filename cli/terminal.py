"""The one door to a terminal: text that others chose is made safe here, in tables, lines, JSON and logs alike."""

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
"""What a terminal obeys instead of showing it: control characters, and marks that turn the direction of writing."""
_PLAIN = str.maketrans("▁▂▃▄▅▆▇█░▒▪═·×–—…µ°’“”→✓", '_.,-=+*#:%o=.x--.uo\'"">v')
"""What stands for our own signs where a terminal has no such letters."""
_ERRORS = "peerwatch.plain"


def safe(text: str, mark: str = "?") -> str:
    """The text with a mark for each character that a terminal would obey; lines and tabs stay."""
    return _OBEYED.sub(mark, text)


def say(text: object = "", err: bool = False) -> None:
    """Print a line."""
    stream = sys.stderr if err else sys.stdout
    stream.write(f"{safe(str(text))}\n")
    stream.flush()


def say_json(value: Any) -> None:
    """Print an object in one line of JSON; what a terminal would obey is written as an escape, so nothing is lost."""
    line = json.dumps(value, ensure_ascii="utf" not in (sys.stdout.encoding or "").lower())
    say(_OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", line))


def console(err: bool = False) -> Console:
    """Standard output (or error); into a file or a pipe a row is one line, however long. Markup is plain text."""
    from rich.console import Console
    from rich.segment import Segment

    class Safe(Console):
        def render(self, renderable: Any, options: Any = None) -> Any:
            for part in super().render(renderable, options):
                # Rich's own commands, such as to move the cursor, are marked as such; text never is. What it
                # has measured as no columns wide is left out, or tables would cut what stands behind it.
                yield part if part.control else Segment(safe(part.text, ""), part.style)

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # Rich itself would end with 1, which of `status` means a warning

    plain: dict[str, Any] = {"markup": False, "emoji": False, "highlight": False, "stderr": err}
    screen = Safe(**plain)
    return screen if screen.is_terminal else Safe(width=_UNBROKEN, **plain)


@contextmanager
def progress(what: str, span: tuple[int, int]) -> Iterator[Callable[[int], None]]:
    """Gives a function to be told up to which time (Unix ns) the work is done; silent where nobody looks."""
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
    """Make logs safe, and let a terminal without our signs show others instead of ending the command."""
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
    """The reader of our output has seen enough: what is still to be written goes nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
