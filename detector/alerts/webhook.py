"""A webhook as a sink: each alert is posted as JSON, in our own form, Slack's or Alertmanager's.

An address may be a secret as a whole (Slack's is): it is in no log, no error and no representation of the settings.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from detector.alert import Alert, LaterError, RefusedError, Sink
from detector.verdict import Level

CREDENTIAL = "webhook-url"
ALERTMANAGER_S = 60.0
"""Alertmanager forgets an alert that is not told again; ours hold for four of these."""
_BODY_BYTES = 300
_NEVER = (400, 405, 406, 410, 413, 415, 422)
"""Answers that say that this very request will not be taken, whenever it comes."""


class WebhookConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the sink `webhook`. Raises ValueError for a value that cannot be meant."""

    url: str = ""
    """Where to post; better named in a file, since whoever has it can post too."""
    url_file: str = ""
    """File whose first line is the address; empty: systemd's credential webhook-url, if there is one."""
    token_file: str = ""
    """File whose first line is sent as `Authorization: Bearer …`."""
    ca_file: str = ""
    """Certificates by which an https server is known; empty: the system's."""
    template: str = "json"
    """json, slack or alertmanager."""
    least_level: Level = "warn"
    """warn, or crit: milder incidents are not told."""
    timeout_seconds: float = 10.0
    """How long the server may be silent."""
    repeat_seconds: float = 0.0
    """How often an incident that lasts is told again; 0: as the template needs."""

    def __post_init__(self) -> None:
        """Refuse what cannot be meant, naming the key and never the address."""
        for key, low, high in (("timeout_seconds", 0.1, 600.0), ("repeat_seconds", 0.0, 1e6)):
            if not low <= getattr(self, key) <= high:
                raise ValueError(f"alerts.webhook.{key} is {getattr(self, key)}: it must lie in {low:g} to {high:g}")
        if self.template not in FORMS:
            raise ValueError(f"alerts.webhook.template is {self.template!r}: known are {', '.join(FORMS)}")
        if self.url:
            _checked(self.url)

    def __repr__(self) -> str:
        """Without the address."""
        return f"WebhookConfig(template={self.template!r})"

    def address(self) -> str:
        """Where to post. Raises ValueError where nothing says so, or the file cannot be read."""
        credential = Path(os.environ.get("CREDENTIALS_DIRECTORY", "/nonexistent")) / CREDENTIAL
        file = self.url_file or (str(credential) if not self.url and os.path.isfile(credential) else "")
        found = _first_line(file, "url_file") if file else self.url
        if not found:
            raise ValueError("alerts.webhook names no address: set alerts.webhook.url_file or url")
        return _checked(found)


class Webhook(Sink):
    """Posts to one address; `clock` gives the time (Unix ns)."""

    def __init__(self, config: WebhookConfig, clock: Callable[[], int]) -> None:
        self.config, self.clock = config, clock
        self._url = config.address()
        self._headers = {"Content-Type": "application/json", "User-Agent": "peerwatch"}
        if config.token_file:
            self._headers["Authorization"] = f"Bearer {_first_line(config.token_file, 'token_file')}"
        self._open: Any = None
        self.place = urlsplit(self._url).hostname or ""
        self.repeat_s = config.repeat_seconds or (ALERTMANAGER_S if config.template == "alertmanager" else 0.0)
        self.least = config.least_level

    def send(self, alert: Alert) -> str:
        """Post it. Raises LaterError where it may be taken later, RefusedError where never."""
        holds = self.clock() + round(4e9 * (self.repeat_s or ALERTMANAGER_S))
        body = json.dumps(FORMS[self.config.template](alert, holds)).encode()
        status, said, rest_s = self._post(body)
        if 200 <= status < 300:
            return f"{self.place} answered {status}"
        reason = f"{self.place} answers {status}{': ' + said if said else ''}"
        if status in _NEVER:
            raise RefusedError(reason)
        if status in (301, 302, 307, 308, 401, 403, 404):
            reason += "; are alerts.webhook.url and token_file right?"
        raise LaterError(reason, rest_s)

    def _post(self, body: bytes) -> tuple[int, str, float]:
        """Status, the beginning of the answer, and the seconds for which the server wants to be left alone."""
        import http.client  # together some 5 MB, which only those who have a webhook should pay
        import urllib.error
        import urllib.request

        request = urllib.request.Request(self._url, body, self._headers, method="POST")  # noqa: S310 - http or https
        try:
            self._open = self._open or self._opener()
            with self._open.open(request, timeout=self.config.timeout_seconds) as answer:
                return answer.status, "", 0.0
        except urllib.error.HTTPError as error:
            with error:
                said = " ".join(error.read(_BODY_BYTES).decode(errors="replace").split())
                return error.code, self._hidden(said), _seconds(error.headers.get("Retry-After"))
        except (OSError, http.client.HTTPException) as error:
            why = self._hidden(" ".join(str(getattr(error, "reason", error)).split()) or type(error).__name__)
            raise LaterError(f"{self.place} cannot be reached: {why}") from None  # its traceback holds the address

    def _opener(self) -> Any:
        import ssl
        import urllib.request

        class Here(urllib.request.HTTPRedirectHandler):
            """Follows nowhere: what is posted is meant for this server."""

            def redirect_request(self, *_: Any) -> None:
                """No other request."""
                return

        tls = urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=self.config.ca_file or None))
        return urllib.request.build_opener(Here(), tls)

    def _hidden(self, text: str) -> str:
        """The text without the address or its path, should a server repeat them."""
        parts = urlsplit(self._url)
        for secret in (self._url, f"{parts.path}?{parts.query}", parts.path, parts.query):
            text = text.replace(secret, "…") if len(secret) > 3 else text
        return text


def _json(alert: Alert, _: int) -> object:
    return alert.as_json()


def _slack(alert: Alert, _: int) -> object:
    """One message. https://api.slack.com/messaging/webhooks"""
    verdict = alert.verdict
    said = verdict.message
    if alert.event == "over" and alert.end is not None:
        said += f", after {_words(alert.end - alert.start)}. It was: {alert.finding.message}"
    plain = said.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return {"text": f"*{verdict.level.upper()}* (task {verdict.task}, incident {alert.incident}) {plain}"}


def _alertmanager(alert: Alert, holds: int) -> object:
    """One alert; labels are its identity. https://prometheus.io/docs/alerting/latest/alerts_api/"""
    verdict = alert.verdict
    labels = {
        "alertname": "PeerwatchTest" if alert.event == "test" else "PeerwatchFaultyMachine",
        "machine": verdict.machine,
        "task": verdict.task,
        "incident": alert.incident,
        "severity": alert.worst,
    }
    notes = {
        "summary": verdict.message,
        "finding": alert.finding.message,
        "device": verdict.device or "",
        "metric": verdict.metric,
        "score": f"{alert.finding.score:.2f}",
    }
    ends = holds if alert.end is None else alert.end
    return [{"labels": labels, "annotations": notes, "startsAt": _rfc3339(alert.start), "endsAt": _rfc3339(ends)}]


FORMS: dict[str, Callable[[Alert, int], object]] = {"json": _json, "slack": _slack, "alertmanager": _alertmanager}
"""By the name of a template: the body, given the alert and until when (Unix ns) it holds if nothing more is said."""


def _checked(url: str) -> str:
    """The address itself, if it can be one. Raises ValueError, which does not repeat it."""
    try:
        parts = urlsplit(url)
        sound = parts.scheme in ("http", "https") and parts.hostname and (parts.port or 1) and not parts.username
    except ValueError:
        sound = False
    if not sound or any(sign <= " " or sign > "~" for sign in url):
        raise ValueError(
            "the address in alerts.webhook cannot be meant: write https://SERVER/PATH, without user or space"
        )
    return url


def _first_line(file: str, key: str) -> str:
    try:
        return next(iter(Path(file).read_text().splitlines()), "").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise ValueError(f"alerts.webhook.{key} {file} cannot be read: {why}") from error


def _seconds(header: str | None) -> float:
    """What Retry-After says in seconds; a date is not looked at."""
    return min(float(header), 3600.0) if header and header.isdigit() else 0.0


def _rfc3339(time: int) -> str:
    return datetime.fromtimestamp(time // 10**9, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _words(span: int) -> str:
    seconds = max(0, span) // 10**9
    return f"{seconds} s" if seconds < 120 else f"{seconds // 60} min"
