"""Tokens of servers: from a file, systemd's credential or the environment, never from the configuration itself."""

from __future__ import annotations

import os
from pathlib import Path

from store.schema.contract import StoreError


def token_of(table: str, token_file: str, credential: str, variable: str) -> str:
    """The token: from its file, else from systemd's credential, else from the environment; empty if none is given.

    Raises StoreError where the file that was named cannot be read.
    """
    credential_file = Path(os.environ.get("CREDENTIALS_DIRECTORY", "/nonexistent")) / credential
    file = token_file or (str(credential_file) if os.path.isfile(credential_file) else "")
    if not file:
        return os.environ.get(variable, "").strip()
    try:
        return next(iter(Path(file).read_text().splitlines()), "").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise StoreError(f"{table}.token_file {file} cannot be read: {why}") from error
