"""Reads the log of NCCL's Inspector plugin: one JSON object an operation.

The format is that of ext-profiler/inspector in NCCL 2.28 and later. Times of start and end are there with
NCCL_INSPECTOR_DUMP_VERBOSE=1; without, an operation is taken to end when it was written, half a millisecond late at
the plugin's usual interval.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from analysis.traces.bounded import Scanner, TraceError, opened
from analysis.traces.members import Members, key
from analysis.traces.operations import UNKNOWN, Collector, kind_of, number, whole

_MICRO = 1e-6


def read(path: Path, table: Collector, members: Members) -> bool:
    """Add the operations of one file; whether its last line is cut off, as in a job that still runs.

    Ranks are named by the keys of `members`. Raises TraceError for a file that is no such log.
    """
    with opened(path) as stream:
        scan, before = Scanner(stream, path), len(table)
        for record in _records(scan):
            _add(record, table, members)
        if len(table) == before and scan.peek():
            scan.fail()
        return bool(scan.peek())


def _records(scan: Scanner) -> Iterator[dict[str, Any]]:
    """The objects of the file; ends at the first that is cut off."""
    read = 0
    while scan.peek():
        try:
            record = scan.value()
        except TraceError:
            if read and scan.last_line():
                return
            raise
        read += 1
        if isinstance(record, dict):
            yield record


def _add(record: dict[str, Any], table: Collector, members: Members) -> None:
    """Add an operation; a summary or an event of the proxy is none."""
    prefix = "p2p" if "p2p_perf" in record else "coll"
    perf, head, about = record.get(f"{prefix}_perf"), record.get("header", record), record.get("metadata", record)
    if not (isinstance(perf, dict) and isinstance(head, dict) and isinstance(about, dict)):
        return
    communicator, machine = str(head.get("id", "")), str(about.get("hostname", ""))
    process = (machine, f"pid {about.get('pid')}"[:40])
    member = members.add(process, communicator, whole(head.get("rank")), whole(head.get("n_ranks"), 0))
    seconds = number(perf.get(f"{prefix}_exec_time_us")) * _MICRO
    entry, start, end = _times(perf.get("event_trace_ts"), prefix)
    if not np.isfinite(end):
        end = number(about.get("dump_timestamp_us")) * _MICRO
        start = end - seconds
    peer = whole(perf.get("p2p_peer")) if prefix == "p2p" else UNKNOWN
    table.add(
        table.rank(member, machine),
        communicator,
        kind_of(str(perf.get(prefix, ""))),
        index=whole(perf.get(f"{prefix}_sn")),
        peer=table.rank(key(communicator, peer)) if peer != UNKNOWN else UNKNOWN,
        bytes=number(perf.get(f"{prefix}_msg_size_bytes")),
        entry=entry,
        start=start,
        end=end,
        seconds=seconds,
    )


def _times(trace: Any, prefix: str) -> tuple[float, float, float]:
    """Entry of the host, first start and last stop of the kernel's channels, Unix seconds; NaN: not in the log."""
    if not isinstance(trace, dict):
        return np.nan, np.nan, np.nan
    channels = trace.get("kernel_events")
    rows = [row for row in channels if isinstance(row, dict)] if isinstance(channels, list) else []
    starts = [number(row.get("kernel_start_ts")) for row in rows]
    ends = [number(row.get("kernel_stop_ts")) for row in rows]
    entry = number(trace.get(f"{prefix}_start_ts")) * _MICRO
    return entry, min(starts, default=np.nan) * _MICRO, max(ends, default=np.nan) * _MICRO
