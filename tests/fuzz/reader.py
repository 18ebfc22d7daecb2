"""One row of the table of readers, and seeds for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any


@dataclass(frozen=True)
class Reader:
    """Whole input to begin with, what reads it, and the errors that it may raise."""

    name: str
    seeds: Callable[[Path], Sequence[bytes]]
    """Called once, with an empty folder."""
    read: Callable[[bytes, Path, Random], object]
    """Called with mutated bytes and a folder of its own."""
    errors: tuple[type[Exception], ...] = ()
    opens: tuple[str, ...] = ()
    """Beginnings of paths that it may open, beside its folder."""
    below: tuple[str, ...] = ()
    """Names that it may open in folders that it holds open."""
    hang_s: float = 10.0
    """The most CPU time of one input."""


def text(*lines: str) -> Callable[[Path], Sequence[bytes]]:
    """Seeds that stand here."""
    return lambda folder: [line.encode("latin1") for line in lines]


def packed(value: Any) -> str:
    """JSON in one line."""
    return json.dumps(value)


def here(path: str) -> Callable[[Path], Sequence[bytes]]:
    """A file of this process as the seed."""
    return lambda folder: [Path(path).read_bytes()]
