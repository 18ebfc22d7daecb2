"""A sink that shows what passes to others before it goes to the store: an endpoint for Prometheus, a sender of OTLP."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Protocol

from store.exposition.config import MetricsConfig, OtlpConfig
from store.exposition.endpoint import Endpoint
from store.exposition.family import Family
from store.exposition.latest import LatestRows
from store.exposition.openmetrics import render
from store.exposition.otlp_sender import OtlpSender
from store.schema.sample import Batch

log = logging.getLogger(__name__)


class Sink(Protocol):
    """Where batches go."""

    def write(self, batches: Iterable[Batch]) -> None:
        """Store the batches. Raises OSError or ValueError when it cannot."""


class Outlets:
    """The endpoint and the sender of one program, as far as they are configured; neither stops the program.

    `families` returns the metrics at a time (Unix ns), `prepare` is called in each thread before it begins.
    """

    def __init__(
        self,
        listen: tuple[str, str],
        otlp: OtlpConfig,
        about: dict[str, str],
        families: Callable[[int], list[Family]],
        prepare: Callable[[], None] = lambda: None,
    ) -> None:
        address, key = listen
        self.endpoint: Endpoint | None = None
        self.sender: OtlpSender | None = None
        try:
            if address:
                self.endpoint = Endpoint(address, key, lambda form: render(families(time.time_ns()), form), prepare)
                log.info("metrics are at http://%s/metrics", address)
            if otlp.endpoint:
                self.sender = OtlpSender(otlp, families, about, prepare)
                self.sender.start()
        except OSError as error:  # also StoreError; watching goes on without
            log.error("%s", error)

    def close(self) -> None:
        """End both."""
        for one in (self.endpoint, self.sender):
            if one is not None:
                one.close()


class Published:
    """The agent's sink: the newest batch is shown first, and is shown too while the store cannot be written."""

    def __init__(
        self, sink: Sink, machine: str, metrics: MetricsConfig, otlp: OtlpConfig, prepare: Callable[[], None]
    ) -> None:
        self._sink, self._latest = sink, LatestRows(machine)
        about = {"service.name": "peerwatch-agent", "host.name": machine}
        self._outlets = Outlets((metrics.listen, "metrics.listen"), otlp, about, self._latest.families, prepare)

    def write(self, batches: Iterable[Batch]) -> None:
        """Show the newest batch and write all. Raises what the sink raises."""
        *older, newest = batches
        if sender := self._outlets.sender:
            newest = replace(newest, samples=(*newest.samples, sender.sample()))
        self._latest.receive(newest)
        self._sink.write((*older, newest))

    def close(self) -> None:
        """End the outlets; the sink is its owner's to close."""
        self._outlets.close()
