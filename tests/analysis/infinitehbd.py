"""The fault log of 400 LLM-training servers over 349 days (stepfun-ai/InfiniteHBD-Trace, Apache-2.0)."""

from __future__ import annotations

import gzip
import json
import os
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

SERVERS = 400
"""As its publisher says; 231 of them have a fault, the others are not named."""
FILE = Path(
    os.environ.get("PEERWATCH_INFINITEHBD") or Path(__file__).parents[3] / "shared/data/infinitehbd/fault_trace.json.gz"
)
there = pytest.mark.skipif(not FILE.exists(), reason=f"{FILE} is not there: PEERWATCH_INFINITEHBD=FILE names it")


def faults() -> NDArray[np.float64]:
    """[fault, (server, begin, end)]: servers numbered from 0, times in days; a fault of a kind ends with its pair."""
    rows = json.loads(gzip.decompress(FILE.read_bytes()))
    names = {name: at for at, name in enumerate(sorted({row["node_id"] for row in rows}))}
    begun, found = defaultdict[str, list[float]](list), []
    for row in sorted(rows, key=lambda row: (row["event_time"], row["event_type"] == "fault_start")):
        key = f"{row['node_id']} {sorted(row['fault_type'].items())}"
        if row["event_type"] == "fault_start":
            begun[key].append(row["event_time"])
        elif begun[key]:
            found.append((names[row["node_id"]], begun[key].pop(0), row["event_time"]))
    return np.array(sorted(found, key=lambda row: row[1]))


def troubles(gap: float = 1.0) -> NDArray[np.float64]:
    """As `faults`; what begins within `gap` days of the last end on its server is one."""
    merged: dict[float, list[list[float]]] = {}
    for server, begin, end in faults().tolist():
        mine = merged.setdefault(server, [])
        if mine and begin - mine[-1][2] <= gap:
            mine[-1][2] = max(mine[-1][2], end)
        else:
            mine.append([server, begin, end])
    return np.array(sorted((row for mine in merged.values() for row in mine), key=lambda row: row[1]))
