"""HTTP requests to an address that may be a secret: no log line and no error repeats it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from detector.alerts.alert import RetryLaterError

_BODY_BYTES = 300


class Address:
    """One address with its headers and timeout; redirections are not followed. `of` names its settings in errors."""

    def __init__(self, url: str, of: str, timeout_s: float, ca_file: str = "", token_file: str = "") -> None:
        self._url = checked(url, of)
        self._timeout_s, self._ca_file = timeout_s, ca_file
        self._headers = {"User-Agent": "peerwatch"}
        if token_file:
            self._headers["Authorization"] = f"Bearer {first_line(token_file, f'{of}.token_file')}"
        self._open: Any = None
        self.place = urlsplit(self._url).hostname or ""

    def get(self) -> Answer:
        """GET. Raises RetryLaterError where the server cannot be reached."""
        return self._ask(None, {})

    def post(self, body: bytes) -> Answer:
        """POST a JSON body. Raises RetryLaterError where the server cannot be reached."""
        return self._ask(body, {"Content-Type": "application/json"})

    def _ask(self, body: bytes | None, more: dict[str, str]) -> Answer:
        import http.client  # some 5 MB, loaded only where a webhook is configured
        import urllib.error
        import urllib.request

        request = urllib.request.Request(self._url, body, self._headers | more)  # noqa: S310 - http or https
        try:
            self._open = self._open or self._opener()
            with self._open.open(request, timeout=self._timeout_s) as answer:
                return Answer(answer.status, "", 0.0)
        except urllib.error.HTTPError as error:
            with error:
                said = " ".join(error.read(_BODY_BYTES).decode(errors="replace").split())
                return Answer(error.code, self._hidden(said), _seconds(error.headers.get("Retry-After")))
        except (OSError, http.client.HTTPException) as error:
            why = self._hidden(" ".join(str(getattr(error, "reason", error)).split()) or type(error).__name__)
            raise RetryLaterError(f"{self.place} cannot be reached: {why}") from None  # a traceback shows the address

    def _opener(self) -> Any:
        import ssl
        import urllib.request

        class Here(urllib.request.HTTPRedirectHandler):
            """Follows no redirection: the body is meant for this server only."""

            def redirect_request(self, *_: Any) -> None:
                """Refuse."""
                return

        tls = urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=self._ca_file or None))
        return urllib.request.build_opener(Here(), tls)

    def _hidden(self, text: str) -> str:
        """The text without the address and its path, in case the server repeats them."""
        parts = urlsplit(self._url)
        for secret in (self._url, f"{parts.path}?{parts.query}", parts.path, parts.query):
            text = text.replace(secret, "…") if len(secret) > 3 else text
        return text


@dataclass(frozen=True, slots=True)
class Answer:
    """Status, the beginning of the body, and the seconds of Retry-After."""

    status: int
    said: str
    rest_s: float

    @property
    def good(self) -> bool:
        """Whether the status is 2xx."""
        return 200 <= self.status < 300


def address_of(url: str, url_file: str, credential: str, of: str) -> str:
    """The address from the file, the setting or the systemd credential that the settings `of` name; empty if none.

    Raises ValueError where the file cannot be read, or the text is no address.
    """
    found = Path(os.environ.get("CREDENTIALS_DIRECTORY", "/nonexistent")) / credential
    file = url_file or (str(found) if not url and os.path.isfile(found) else "")
    address = first_line(file, f"{of}.url_file") if file else url
    return checked(address, of) if address else ""


def checked(url: str, of: str) -> str:
    """The address, if it is valid. Raises ValueError, which does not repeat it."""
    try:
        parts = urlsplit(url)
        sound = parts.scheme in ("http", "https") and parts.hostname and (parts.port or 1) and not parts.username
    except ValueError:
        sound = False
    if not sound or any(sign <= " " or sign > "~" for sign in url):
        raise ValueError(f"the address in {of} is not valid: write https://SERVER/PATH, without user or space")
    return url


def first_line(file: str, key: str) -> str:
    """The first line of a file that a setting names. Raises ValueError where it cannot be read."""
    try:
        return next(iter(Path(file).read_text().splitlines()), "").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise ValueError(f"{key} {file} cannot be read: {why}") from error


def _seconds(header: str | None) -> float:
    """Seconds of a Retry-After header, 3,600 at most; a date is ignored."""
    return min(float(header), 3600.0) if header and header.isdigit() else 0.0
