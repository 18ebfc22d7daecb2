"""A webhook as a sink: each alert is posted as JSON, in the form of Peerwatch, Slack or Alertmanager.

An address may be a secret (Slack's is): it appears in no log, no error and no representation of the settings.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from detector.alerts.alert import Alert, RefusedError, RetryLaterError, Sink
from detector.alerts.forms import FORMS
from detector.alerts.http_post import Address, address_of, checked

CREDENTIAL, TABLE = "webhook-url", "alerts.webhook"
ALERTMANAGER_S = 60.0
"""Seconds between repeated posts: Alertmanager resolves an alert that is not repeated; each post is valid for four."""
_NEVER = (400, 405, 406, 410, 413, 415, 422)
"""Statuses by which a server refuses this request for good."""


class WebhookConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the sink `webhook`. Raises ValueError for an invalid value."""

    url: str = ""
    """Address of the POST; prefer url_file: anyone who knows the address can post."""
    url_file: str = ""
    """File with the address in its first line; empty: systemd's credential webhook-url, if there is one."""
    token_file: str = ""
    """File with the token of `Authorization: Bearer …` in its first line."""
    ca_file: str = ""
    """CA certificates for https; empty: the system's."""
    template: str = "json"
    """json, slack or alertmanager."""
    least_level: Literal["", "note", "warn", "crit"] = ""
    """The same for this sink alone: note, warn or crit; empty: `alerts.min_level`."""
    timeout_seconds: Annotated[float, Meta(ge=0.1, le=600.0)] = 10.0
    """Seconds until a request fails."""
    repeat_seconds: Annotated[float, Meta(ge=0.0, le=1e6)] = 0.0
    """Seconds between repeated posts of an open incident; 0: as the template needs."""

    def __post_init__(self) -> None:
        """Refuse invalid values, naming the key and never the address."""
        if self.template not in FORMS:
            raise ValueError(f"alerts.webhook.template is {self.template!r}: known are {', '.join(FORMS)}")
        if self.url:
            checked(self.url, TABLE)

    def __repr__(self) -> str:
        """Without the address."""
        return f"WebhookConfig(template={self.template!r})"

    def address(self) -> str:
        """Address of the POST. Raises ValueError where none is configured, or the file cannot be read."""
        found = address_of(self.url, self.url_file, CREDENTIAL, TABLE)
        if not found:
            raise ValueError("alerts.webhook names no address: set alerts.webhook.url_file or url")
        return found


class Webhook(Sink):
    """Posts to one address; `clock` returns Unix ns."""

    def __init__(self, config: WebhookConfig, clock: Callable[[], int]) -> None:
        self.config, self.clock = config, clock
        self.to = Address(config.address(), TABLE, config.timeout_seconds, config.ca_file, config.token_file)
        self.repeat_s = config.repeat_seconds or (ALERTMANAGER_S if config.template == "alertmanager" else 0.0)
        self.own_level = config.least_level or None

    def send(self, alert: Alert) -> str:
        """Post it. Raises RetryLaterError, or RefusedError where the server refuses it for good."""
        now = self.clock()
        holds = now + round(4e9 * (self.repeat_s or ALERTMANAGER_S))
        answer = self.to.post(json.dumps(FORMS[self.config.template](alert, now, holds)).encode())
        if answer.good:
            return f"{self.to.place} answered {answer.status}"
        reason = f"{self.to.place} answers {answer.status}{': ' + answer.said if answer.said else ''}"
        if answer.status in _NEVER:
            raise RefusedError(reason)
        if answer.status in (301, 302, 307, 308, 401, 403, 404):
            reason += "; are alerts.webhook.url and token_file right?"
        raise RetryLaterError(reason, answer.rest_s)
