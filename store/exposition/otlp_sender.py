"""Sends metrics to an OpenTelemetry collector from a thread of its own; it is never in the way of what is measured."""

from __future__ import annotations

import gzip
import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping

from store.exposition.config import OtlpConfig
from store.exposition.family import Family
from store.exposition.otlp import encode
from store.schema.sample import Sample, Value

log = logging.getLogger(__name__)

BACK_OFF_S = (1.0, 60.0)
"""The first and the longest wait after a failure, in seconds; each wait doubles, with jitter over its second half."""
LONGEST_REST_S = 900.0
"""The longest Retry-After that is obeyed."""
RETRIED = (429, 502, 503, 504)
"""Statuses after which OTLP asks to send the same again; every other failure refuses the request for good."""


class RetryError(OSError):
    """The server cannot take anything now; `rest_s` seconds are to pass if it said so."""

    def __init__(self, why: str, rest_s: float = 0.0) -> None:
        super().__init__(why)
        self.rest_s = rest_s


class OtlpSender:
    """Sends what `families` returns at a time (Unix ns) every few seconds; `about` are the resource's attributes."""

    def __init__(
        self,
        config: OtlpConfig,
        families: Callable[[int], list[Family]],
        about: Mapping[str, str],
        prepare: Callable[[], None] = lambda: None,
    ) -> None:
        import urllib3  # loaded only where something is sent

        self.config, self._families, self._about = config, families, about
        path = "" if config.endpoint.rstrip("/").endswith("/v1/metrics") else "/v1/metrics"
        self._address = config.endpoint.rstrip("/") + path
        self._headers = {"Content-Type": "application/json", "Content-Encoding": "gzip", "User-Agent": "peerwatch"}
        if token := config.token():
            self._headers["Authorization"] = f"Bearer {token}"
        self._http = urllib3.PoolManager(
            maxsize=1, timeout=config.timeout_seconds, retries=False, ca_certs=config.ca_file or None
        )
        self._start = time.time_ns()
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self.dropped = self.refused = self.failures = 0
        self.error = ""
        self._prepare, self._stop = prepare, threading.Event()
        self._thread = threading.Thread(target=self._run, name="otlp", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """End the thread; what waits is lost."""
        self._stop.set()
        self._thread.join(1.0)

    def sample(self) -> Sample:
        """Its state, as a row of the table `source`; rows are requests here."""
        values: dict[str, Value] = {"source": "otlp", "success": float(not self.error), "error": self.error or None}
        values |= {"waiting_rows": float(len(self._waiting)), "waiting_bytes": float(self._bytes)}
        values |= {"dropped_rows_total": self.dropped, "refused_rows_total": self.refused}
        return Sample("source", values)

    def collect(self, now: int) -> None:
        """Queue the newest metrics, and drop the oldest requests that are too many."""
        found = self._families(now)
        if found:
            self._waiting.append(gzip.compress(encode(found, self._about, self._start), 1))
            self._bytes += len(self._waiting[-1])
        while len(self._waiting) > 1 and self._bytes > self.config.queue_bytes:
            self._bytes -= len(self._waiting.popleft())
            self.dropped += 1

    def send(self) -> float:
        """Send all that waits, the oldest first; returns the seconds until it is tried again, 0 if all is sent."""
        try:
            while self._waiting:
                self._post(self._waiting[0])
                self._bytes -= len(self._waiting.popleft())
        except RetryError as error:
            return self._failed(str(error), error.rest_s)
        if self.failures:
            log.info("%s takes metrics again", self._address)
        self.failures, self.error = 0, ""
        return 0.0

    def _post(self, body: bytes) -> None:
        """Post one request; one that is refused for good is counted. Raises RetryError."""
        from urllib3.exceptions import HTTPError

        try:
            answer = self._http.request("POST", self._address, body=body, headers=self._headers, redirect=False)
        except (HTTPError, OSError) as error:
            raise RetryError(f"it cannot be reached: {type(error).__name__}") from error
        if answer.status in RETRIED:
            said = answer.headers.get("Retry-After", "")
            raise RetryError(f"it answers {answer.status}", float(said) if said.isdigit() else 0.0)
        if not 200 <= answer.status < 300:
            if not self.refused:
                words = " ".join(answer.data[:200].decode(errors="replace").split())
                log.error("%s refuses metrics, as it may later ones: %d %s", self._address, answer.status, words)
            self.refused += 1

    def _failed(self, why: str, rest_s: float) -> float:
        if why != self.error:
            log.error("metrics wait in memory for %s: %s", self._address, why)
        self.failures, self.error = self.failures + 1, why
        first, longest = BACK_OFF_S
        wait = min(longest, first * 2.0 ** min(self.failures - 1, 20)) * random.uniform(0.5, 1.0)
        return max(wait, min(rest_s, LONGEST_REST_S))

    def _run(self) -> None:
        self._prepare()
        due, retry = time.monotonic(), 0.0
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            due += self.config.every_seconds
            try:
                self.collect(time.time_ns())
                if time.monotonic() >= retry:
                    retry = time.monotonic() + self.send()
            except Exception as error:  # a thread that has ended would be noticed by the missing metrics alone
                log.exception("metrics cannot be sent")
                retry = time.monotonic() + self._failed(type(error).__name__, 0.0)
            due = max(due, time.monotonic())
