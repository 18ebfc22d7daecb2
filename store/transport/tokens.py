"""Tokens of servers: from a file, systemd's credential or the environment, never from the configuration itself."""

from __future__ import annotations

import ipaddress
import logging
import os
from pathlib import Path
from urllib.parse import urlsplit

from store.schema.contract import StoreError

log = logging.getLogger(__name__)


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


def warn_if_readable(url: str, token: str) -> None:
    """Log where a token leaves this machine without encryption: `http://` or `nats://` to another host."""
    secure = {"http": "https", "nats": "tls"}.get(url.partition("://")[0])
    if token and secure and not _is_here(url):
        log.warning("the token for %s can be read on its way: use %s://", url, secure)


def _is_here(url: str) -> bool:
    """Whether a URL leads to this machine, by the name or address in it alone."""
    try:
        host = urlsplit(url).hostname
        return host == "localhost" or ipaddress.ip_address(host or "").is_loopback
    except ValueError:  # another name, or none
        return False
