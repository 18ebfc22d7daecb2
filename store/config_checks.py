"""What the tables of the configuration have in common: numbers within bounds, and tokens that are never in the file."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from store.schema.contract import StoreError


def refuse_outside(config: msgspec.Struct, table: str, bounds: Iterable[tuple[str, float, float]]) -> None:
    """Raise ValueError, naming the key, for a number that does not lie between its least and its most."""
    for key, low, high in bounds:
        if not low <= getattr(config, key) <= high:
            raise ValueError(f"{table}.{key} is {getattr(config, key)}: it must lie between {low:g} and {high:g}")


def token_of(table: str, token_file: str, credential: str, variable: str) -> str:
    """The token: from its file, else from systemd's credential, else from the environment; empty if none is given.

    Raises StoreError where the file that was named cannot be read.
    """
    given = Path(os.environ.get("CREDENTIALS_DIRECTORY", "/nonexistent")) / credential
    file = token_file or (str(given) if os.path.isfile(given) else "")
    if not file:
        return os.environ.get(variable, "").strip()
    try:
        return next(iter(Path(file).read_text().splitlines()), "").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise StoreError(f"{table}.token_file {file} cannot be read: {why}") from error
