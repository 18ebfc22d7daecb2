"""What it costs an agent to ask for orders, and to obey one."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from agent.config import AgentConfig
from agent.context import Context
from agent.sources import host
from store.schema.sample import Batch, Sample
from store.sqlite.embedded import Embedded
from store.zoom_requests import FileZoomRequests, ZoomKey, ZoomRequest

pytestmark = pytest.mark.bench
SECOND = 10**9


def test_cost_of_asking(tmp_path: Path) -> None:
    """Every few seconds, in a file that holds an hour of readings and events: next to nothing."""
    store, now = Embedded(tmp_path / "s.db"), time.time_ns()
    event = Sample("event", {"source": "kernel_log", "code": "xid:13", "severity": "info", "message": "x"})
    for back in range(3600, 0, -1):
        store.write([Batch("m1", now - back * SECOND, (event, Sample("host", {"processes_running": 3.0})))])
    store.write([Batch("m1", now, (ZoomRequest(now, "gpu", 20.0, now + SECOND).sample(),))])
    orders, begin = FileZoomRequests(tmp_path / "s.db", ZoomKey("m1")), time.process_time()
    for _ in range(1000):
        assert len(orders.read(now - 120 * SECOND)) == 1
    each_ms = time.process_time() - begin
    print(
        f"\nasking for orders: {each_ms:.2f} ms every {orders.every_s:g} s, {each_ms / orders.every_s:.3f} ms a second"
    )
    assert each_ms / orders.every_s < 1
    orders.close()
    store.close()


def test_cost_of_a_closer_look() -> None:
    """One reading of the operating system, and what twenty a second take of a core."""
    source, begin = host.open_source(Context(AgentConfig())), time.process_time()
    for _ in range(400):
        source.read(time.time_ns())
    each_ms = (time.process_time() - begin) / 0.4
    source.close()
    print(f"\nzoom into host: {each_ms:.2f} ms of CPU a reading, {2 * each_ms:.1f} % of a core at 20 a second")
    assert each_ms < 50
