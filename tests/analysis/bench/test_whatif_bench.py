"""How long a replay of a million operations takes."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from analysis.whatif.meta_file import JobMeta
from analysis.whatif.model import build_model
from analysis.whatif.slowdown import analyse, replays
from analysis.whatif.trace_file import read_trace
from tests.analysis.whatif.jobs import Job, many

pytestmark = pytest.mark.bench


def test_whatif_of_a_million_operations(tmp_path: Path) -> None:
    """32 data ranks, 4 stages, 32 micro-batches, 48 steps: reading, graph and all replays."""
    file = tmp_path / "trace.parquet"
    parquet.write_table(pa.table(many(32, 48, Job(pp=4, micro_batches=32))), file)
    begun = time.process_time()
    found = read_trace(file).found
    read = time.process_time()
    model = build_model(found)
    built = time.process_time()
    analyse(model, JobMeta())
    ended = time.process_time()
    print(
        f"\n{len(found):,} operations: {read - begun:.1f} s of CPU to read, {built - read:.1f} s for the graph, "
        f"{ended - built:.1f} s for {replays(model)} replays"
    )
    assert ended - begun < 60
