"""Answers of an InfluxDB server: message, time to wait, and one line that names cause and mend."""

from __future__ import annotations

import json
import re
import time
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import Any

import urllib3

from store.influx.config import Address
from store.transport.answers import NO_ANSWER, Answer


def explain(address: Address, answer: Answer) -> str:
    """One line that names cause and mend; a token is never in it."""
    if answer.status == NO_ANSWER:
        return f"{address} does not answer: {answer.reason}; is the server up and the address right?"
    why = f"{answer.status}{answer.reason and ': ' + answer.reason}"
    if "dbrp" in answer.reason.lower():
        return f'{address} has no name for InfluxQL ({why}): set influxdb.reading = "flux", or map the bucket'
    if answer.status in (401, 403):
        return f"{address} refuses this token ({why}): influxdb.token_file must name one that is valid here"
    if "beyond retention policy" in answer.reason:
        return (
            f"{address} keeps rows for a shorter time than these are old ({why}): copy later ones (--since), "
            "or raise influxdb.keep_days before the database is created"
        )
    if answer.status == 404:
        return f"{address} is not there ({why}): create the database or bucket, or name another store"
    return f"{address} answers {why}"


def client_answer(error: Any) -> Answer:
    """An exception of influxdb-client as an answer."""
    if not error.status:
        return Answer(NO_ANSWER, one_line(error.reason))
    headers = error.headers or {}
    body = error.body.encode() if isinstance(error.body, str) else error.body or b""
    return Answer(int(error.status), server_message(body), retry_after(headers.get("Retry-After")))


def server_message(body: bytes) -> str:
    """The message in the body of an answer, in one line."""
    text = body.decode(errors="replace").strip()
    with suppress(ValueError, AttributeError, RecursionError):  # not every server or proxy answers in JSON
        found = json.loads(text)
        text = str(found.get("error") or found.get("message") or text)
    return one_line(text)


def one_line(error: object) -> str:
    """An error or a message in one line of at most 300 characters."""
    if isinstance(error, urllib3.exceptions.HTTPError):
        # Their words begin with the Python object that failed.
        error = re.sub(r"^\w+\(.*?\): ", "", str(error)) or type(error).__name__
    return " ".join(str(error).split())[:300] or (type(error).__name__ if isinstance(error, Exception) else "")


def retry_after(header: str | None) -> float | None:
    """Seconds to wait; the header gives them as a number or as a date."""
    if not header:
        return None
    with suppress(ValueError):
        return max(0.0, float(header))
    with suppress(ValueError, TypeError):
        return max(0.0, parsedate_to_datetime(header).timestamp() - time.time())
    return None
