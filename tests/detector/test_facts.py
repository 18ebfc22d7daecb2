"""What events hold against machines."""

from __future__ import annotations

import pyarrow as pa

from detector.facts import FLAP, Facts
from detector.orders import Orders
from detector.rows import rows_of

SECOND, START = 10**9, 1_700_000_000 * 10**9


def falls(*told: tuple[float, str]) -> bool:
    """Whether a link flaps of whose falls these sources tell, one after the other, at seconds from the start."""
    facts = Facts()
    for at, source in told:
        row = {"source": source, "code": "link_down", "device": "rdma:mlx5_0/1", "severity": "crit", "message": "down"}
        table = {"time": START + int(at * SECOND), "machine": "m3", **row}
        facts.feed(rows_of("event", pa.table({name: [value] for name, value in table.items()})), Orders())
    return ("m3", "rdma:mlx5_0/1", FLAP) in facts.held


def test_two_sources_that_tell_of_one_fall() -> None:
    """A fall that both the kernel log and the port tell of is one; the second fall within five minutes is flapping."""
    assert not falls((10.2, "kernel_log"), (11.0, "rdma"))
    assert falls((10.2, "kernel_log"), (11.0, "rdma"), (71.3, "kernel_log"), (72.0, "rdma"))
    assert not falls((10.2, "kernel_log"), (11.0, "rdma"), (331.3, "kernel_log"), (332.0, "rdma"))
