"""Single key presses from a terminal, which is restored however the program ends."""

from __future__ import annotations

import os
import select
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager

_KEYS = {
    "\x1b[A": "up",
    "\x1b[B": "down",
    "\x1b[C": "right",
    "\x1b[D": "left",
    "\x1bOA": "up",
    "\x1bOB": "down",
    "\x1bOC": "right",
    "\x1bOD": "left",
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
    "\x1b[H": "home",
    "\x1b[F": "end",
    "\x1b[1~": "home",
    "\x1b[4~": "end",
    "\x1b": "escape",
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\x08": "backspace",
}
_SUSPEND = 6
"""Place of the character-control settings in the list of tcgetattr(3)."""


class Keyboard:
    """Keys by name (`up`, `enter`), or as the character that was typed."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def wait(self, seconds: float) -> list[str]:
        """The keys that were pressed, after so many seconds at most. Raises EOFError: the terminal is gone."""
        if not select.select([self._descriptor], [], [], max(seconds, 0.0))[0]:
            return []
        typed = os.read(self._descriptor, 1024)
        if not typed:
            raise EOFError("the terminal is gone")
        return keys_of(typed.decode(errors="ignore"))


def keys_of(typed: str) -> list[str]:
    """The keys in what a terminal sends; unknown escape sequences are passed over."""
    found = []
    while typed:
        known = max((text for text in _KEYS if typed.startswith(text)), key=len, default="")
        if known == "\x1b" and typed[1:2] in ("[", "O"):
            end = next((at for at, sign in enumerate(typed[2:], 2) if "@" <= sign <= "~"), len(typed) - 1)
            typed = typed[end + 1 :]
            continue
        found.append(_KEYS.get(known, typed[0]))
        typed = typed[len(known) or 1 :]
    return [key for key in found if len(key) > 1 or key.isprintable()]


@contextmanager
def keyboard() -> Iterator[Keyboard]:
    """Keys of standard input without waiting for a line and without echo; Ctrl-C works, Ctrl-Z does nothing."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        now = termios.tcgetattr(descriptor)
        now[_SUSPEND][termios.VSUSP] = b"\x00"  # a suspended screen would leave its terminal unusable
        termios.tcsetattr(descriptor, termios.TCSANOW, now)
        yield Keyboard(descriptor)
    finally:
        termios.tcsetattr(descriptor, termios.TCSAFLUSH, before)
