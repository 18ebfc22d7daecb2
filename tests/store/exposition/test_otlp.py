"""OTLP: the form of a request, and a sender that waits, tries again, drops the oldest and says so."""

from __future__ import annotations

import gzip
import json
import threading
import time
import warnings
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from store.exposition.config import MetricsConfig, OtlpConfig
from store.exposition.family import Family
from store.exposition.otlp import encode
from store.exposition.otlp_sender import OtlpSender
from store.exposition.published import Published
from store.schema.sample import Batch, Sample
from tests.servers import free_port

NOW = 1_780_000_000_000_000_007


class Collector(HTTPServer):
    """An OpenTelemetry collector that answers with a given status."""

    def __init__(self) -> None:
        self.status, self.rest = 200, ""
        self.seen: list[tuple[dict[str, str], dict[str, Any]]] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(here) -> None:  # noqa: N805 - http.server's own name
                body = gzip.decompress(here.rfile.read(int(here.headers["Content-Length"])))
                self.seen.append(({**dict(here.headers), "path": here.path}, json.loads(body)))
                here.send_response(self.status)
                if self.rest:
                    here.send_header("Retry-After", self.rest)
                here.end_headers()

            def log_message(here, *_: Any) -> None:  # noqa: N805
                """Silence."""

        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.server_port}"


@pytest.fixture
def collector() -> Iterator[Collector]:
    """A collector that takes everything."""
    made = Collector()
    yield made
    made.shutdown()
    made.server_close()


def families(now: int = NOW) -> list[Family]:
    """A gauge and a counter."""
    gauge = Family("peerwatch_gpu_power_watts", "gauge", "power draw")
    gauge.add({"machine": "m07", "gpu": "3"}, 411.5, now)
    counter = Family("peerwatch_rdma_discards", "counter", "packets thrown away")
    counter.add({"machine": "m07", "port": "mlx5_0/1"}, 17, now)
    return [gauge, counter, Family("peerwatch_empty", "gauge", "nothing")]


def test_the_form_of_a_request() -> None:
    """Gauges and cumulative sums with attributes, times as strings and units in UCUM, as the protocol's JSON has it."""
    (resource,) = json.loads(encode(families(), {"host.name": "m07"}, NOW - 9))["resourceMetrics"]
    assert resource["resource"]["attributes"] == [{"key": "host.name", "value": {"stringValue": "m07"}}]
    gauge, counter = resource["scopeMetrics"][0]["metrics"]
    assert (gauge["name"], gauge["unit"], counter["unit"]) == ("peerwatch_gpu_power_watts", "W", "")
    (point,) = gauge["gauge"]["dataPoints"]
    assert (point["asDouble"], point["timeUnixNano"]) == (411.5, str(NOW))
    assert (counter["sum"]["isMonotonic"], counter["sum"]["aggregationTemporality"]) == (True, 2)
    assert counter["sum"]["dataPoints"][0]["startTimeUnixNano"] == str(NOW - 9)


def test_a_request_is_a_message_of_opentelemetry() -> None:
    """OpenTelemetry's own protocol definition takes it, every field of it, and reads the same values."""
    text = encode(families(), {"host.name": "m07"}, NOW - 9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of protobuf's own generated code
        from google.protobuf import json_format
        from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
    request = json_format.Parse(text, ExportMetricsServiceRequest(), ignore_unknown_fields=False)
    (scope,) = request.resource_metrics[0].scope_metrics
    gauge, counter = scope.metrics
    assert (gauge.WhichOneof("data"), gauge.gauge.data_points[0].as_double, gauge.unit) == ("gauge", 411.5, "W")
    assert gauge.gauge.data_points[0].time_unix_nano == NOW
    (point,) = counter.sum.data_points
    assert (point.as_double, point.start_time_unix_nano) == (17.0, NOW - 9)
    assert {one.key: one.value.string_value for one in point.attributes} == {"machine": "m07", "port": "mlx5_0/1"}
    assert (counter.sum.is_monotonic, counter.sum.aggregation_temporality) == (True, 2)


def test_requests_arrive(collector: Collector, tmp_path: Path) -> None:
    """A request goes to /v1/metrics, packed, with the token of the file."""
    (tmp_path / "token").write_text("s3cret\nmore\n")
    config = OtlpConfig(endpoint=f"{collector.url}/", token_file=str(tmp_path / "token"))
    sender = OtlpSender(config, families, {})
    sender.collect(NOW)
    assert sender.send() == 0.0
    ((headers, body),) = collector.seen
    assert (headers["path"], headers["Authorization"]) == ("/v1/metrics", "Bearer s3cret")
    assert len(body["resourceMetrics"][0]["scopeMetrics"][0]["metrics"]) == 2
    assert sender.sample().values["success"] == 1.0


def test_an_outage_is_bridged_in_order(collector: Collector, caplog: pytest.LogCaptureFixture) -> None:
    """While the server asks to wait requests queue up, one line says so, and later all arrive, the oldest first."""
    collector.status, collector.rest = 503, "7"
    times = iter((NOW, NOW + 1, NOW + 2))
    sender = OtlpSender(OtlpConfig(endpoint=collector.url), lambda _: families(next(times)), {})
    for _ in range(3):
        sender.collect(0)
        assert sender.send() >= 7.0
    assert caplog.text.count("metrics wait in memory") == 1
    assert (sender.sample().values["waiting_rows"], sender.sample().values["success"]) == (3.0, 0.0)
    collector.status, collector.seen = 200, []
    assert sender.send() == 0.0
    points = [
        body["resourceMetrics"][0]["scopeMetrics"][0]["metrics"][0]["gauge"]["dataPoints"][0]["timeUnixNano"]
        for _, body in collector.seen
    ]
    assert points == [str(NOW), str(NOW + 1), str(NOW + 2)]
    assert sender.sample().values["waiting_bytes"] == 0.0


def test_waits_grow_while_no_collector_answers() -> None:
    """Each failure waits longer, up to a minute."""
    sender = OtlpSender(OtlpConfig(endpoint=f"http://127.0.0.1:{free_port()}"), families, {})
    sender.collect(NOW)
    waits = [sender.send() for _ in range(9)]
    assert waits[0] <= 1.0 < waits[3]
    assert all(30.0 <= wait <= 60.0 for wait in waits[7:])


def test_the_oldest_are_dropped_and_counted() -> None:
    """What waits has a bound in bytes."""
    sender = OtlpSender(OtlpConfig(endpoint="http://127.0.0.1:1", queue_bytes=10_000), families, {})
    for _ in range(90):
        sender.collect(NOW)
    values = sender.sample().values
    assert float(values["waiting_bytes"] or 0) <= 10_000
    assert sender.dropped == 90 - float(values["waiting_rows"] or 0) > 0


def test_what_is_refused_is_not_sent_again(collector: Collector, caplog: pytest.LogCaptureFixture) -> None:
    """A request that the server refuses for good is counted, said once, and left."""
    collector.status = 400
    sender = OtlpSender(OtlpConfig(endpoint=collector.url), families, {})
    for _ in range(2):
        sender.collect(NOW)
        assert sender.send() == 0.0
    assert (sender.refused, caplog.text.count("refuses metrics")) == (2, 1)


def test_the_agents_sink_shows_and_stores(collector: Collector) -> None:
    """Readings go to the store with a row on the sender, and to the collector; a store that fails is no hindrance."""

    class Store:
        stored: list[Batch] = []  # noqa: RUF012 - one store
        broken = False

        def write(self, batches: Any) -> None:
            if self.broken:
                raise OSError("the disk is full")
            self.stored += batches

    store, config = Store(), OtlpConfig(endpoint=collector.url, every_seconds=0.1)
    sink = Published(store, "m07", MetricsConfig(), config, lambda: None)
    now = time.time_ns()
    sink.write([Batch("m07", now, (Sample("host", {"processes_running": 5.0}),))])
    assert [sample.values.get("source") for sample in store.stored[0].samples] == [None, "otlp"]
    store.broken = True
    with pytest.raises(OSError, match="full"):
        sink.write([store.stored[0], Batch("m07", now + 1, (Sample("host", {"processes_running": 6.0}),))])
    deadline = time.monotonic() + 20
    while "6.0" not in json.dumps(collector.seen[-1:]):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    sink.close()
