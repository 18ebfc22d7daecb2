"""Traces of other writers: missing columns, odd rows, steps in part, other formats."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv, parquet

from analysis.whatif.meta_file import read_meta
from analysis.whatif.model import build_model
from analysis.whatif.slowdown import Slowdown
from analysis.whatif.trace_file import read_trace
from tests.analysis.whatif.conftest import measured
from tests.analysis.whatif.jobs import Job, Row, plain


def long(kind: str, dp: int, stage: int, *key: int) -> float:
    """The last of two stages and the last of two data ranks take longer."""
    return plain(kind, dp, stage, *key) + 0.5 * stage + 0.25 * dp


@pytest.fixture
def job() -> Job:
    """Two data ranks, two stages, three steps."""
    return Job(dp=2, pp=2, steps=3, seconds=long)


def same(one: Slowdown, other: Slowdown) -> bool:
    """Whether slowdown and shares agree."""
    return one.slowdown == pytest.approx(other.slowdown) and one.worker_share == pytest.approx(other.worker_share)


@pytest.mark.parametrize("drop", ["seq_id", "mc", "gmc", "mb_id", "rank", "dp_rank"])
def test_a_column_may_be_missing(drop: str, job: Job, tmp_path: Path) -> None:
    """Without one of the columns that only order or number, the figures are the same."""
    whole = measured(job.write(tmp_path / "whole.parquet"))
    assert same(measured(job.write(tmp_path / "part.parquet", (drop,))), whole)


def test_a_single_worker_needs_times_and_types_alone(tmp_path: Path) -> None:
    """A trace of one worker and step may have no column for either."""
    file = Job().write(tmp_path / "one.parquet", ("dp_rank", "stage", "rank", "step", "seq_id", "mc", "gmc", "mb_id"))
    assert measured(file).slowdown == pytest.approx(1)


@pytest.mark.parametrize("packed", [False, True], ids=["csv", "csv.gz"])
def test_csv_is_read(packed: bool, job: Job, tmp_path: Path) -> None:
    """The same columns as CSV, also packed, with end_ts for duration, give the same figures."""
    table = pa.table(job.columns())
    ends = np.add(table.column("start_ts").to_numpy(), table.column("duration").to_numpy())
    file = tmp_path / "trace.csv"
    csv.write_csv(table.drop_columns(["duration"]).append_column("end_ts", pa.array(ends)), file)
    if packed:
        packed_file = tmp_path / "trace.csv.gz"
        packed_file.write_bytes(gzip.compress(file.read_bytes()))
        file = packed_file
    assert same(measured(file), measured(job.write(tmp_path / "whole.parquet")))


def test_odd_rows_are_left_out_and_counted(job: Job, tmp_path: Path) -> None:
    """Text in place of numbers, negative and endless times, unknown types, short and repeated rows change nothing."""
    whole = measured(job.write(tmp_path / "whole.parquet"))
    file = tmp_path / "odd.csv"
    csv.write_csv(pa.table(job.columns()), file)
    names, first, *_ = file.read_text().replace('"', "").splitlines()
    cells = dict(zip(names.split(","), first.split(","), strict=True))
    odd = [
        cells | {"start_ts": "soon"},
        cells | {"duration": "-3"},
        cells | {"duration": "inf"},
        cells | {"optype": "nap"},
    ]
    odd += [cells | {"rank": ""}, cells]
    with file.open("a") as out:
        out.writelines(f"{','.join(row.values())}\n" for row in odd)
        out.write("7,7\n")
    found = measured(file)
    assert same(found, whole)
    assert found.notes == [
        "1 rows of another number of columns are left out",
        "1 rows of other types are left out: nap",
        "4 rows without times, rank, stage or step are left out",
        "1 repeated rows are left out",
    ]


def test_numbers_may_be_any(job: Job, tmp_path: Path) -> None:
    """Large and negative numbers of ranks, steps and micro-batches only tell them apart."""
    whole = measured(job.write(tmp_path / "whole.parquet"))
    for row in job.rows:
        row["dp_rank"], row["step"] = 10**14 * row["dp_rank"] - 7, -(10**9) * row["step"]
        row["rank"], row["mb_id"] = row["rank"] * 10**12, row["mb_id"] * 10**13
    found = measured(job.write(tmp_path / "odd.parquet"))
    assert found.slowdown == pytest.approx(whole.slowdown)
    assert list(found.by_dp_rank) == [-7, 10**14 - 7]
    assert found.by_stage == pytest.approx(whole.by_stage)


def test_clocks_since_1970_are_read(job: Job, tmp_path: Path) -> None:
    """Steps at different Unix times count from their own first operation."""
    whole = measured(job.write(tmp_path / "whole.parquet"))
    for row in job.rows:
        row["start_ts"] += 1.7e9 + 60 * row["step"]
    assert measured(job.write(tmp_path / "unix.parquet")).slowdown == pytest.approx(whole.slowdown, rel=1e-6)


CUTS: dict[str, Callable[[Row], bool]] = {
    "a send": lambda row: row["optype"] == "forward-send" and row["seq_id"] == 1 and row["dp_rank"] == 0,
    "a worker": lambda row: row["stage"] == 1 and row["dp_rank"] == 1,
    "the end": lambda row: row["start_ts"] > 5,
}


@pytest.mark.parametrize("cut", CUTS)
def test_a_step_in_part_is_left_out(cut: str, tmp_path: Path) -> None:
    """A step without one send, one worker or its end is left out, and the others count."""
    job = Job(dp=2, pp=2, steps=3, seconds=long)
    job.rows = [row for row in job.rows if not (row["step"] == 101 and CUTS[cut](row))]
    found = measured(job.write(tmp_path / "trace.parquet"))
    assert found.steps.tolist() == [100, 102]
    assert found.notes == ["1 of 3 steps are left out: they are not recorded whole"]
    assert found.replayed == pytest.approx([job.step_s[0], job.step_s[2]])


def test_passes_alone_show_the_pipeline(tmp_path: Path) -> None:
    """Without any send or receive, passes wait for those of the neighbouring stage."""
    job = Job(pp=3, chunks=2, micro_batches=6, seconds=long)
    whole = measured(job.write(tmp_path / "whole.parquet"))
    job.rows = [row for row in job.rows if "send" not in row["optype"] and "recv" not in row["optype"]]
    found = measured(job.write(tmp_path / "passes.parquet"))
    assert found.replayed == pytest.approx(whole.replayed, rel=0.02)


def test_micro_batches_may_differ(tmp_path: Path) -> None:
    """Steps and replicas with different numbers of micro-batches are replayed as they were."""
    small, large = Job(pp=2, micro_batches=3), Job(pp=2, micro_batches=5)
    rows = small.rows + [row | {"step": 7} for row in large.rows]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "trace.parquet")
    assert measured(tmp_path / "trace.parquet").replayed == pytest.approx([large.step_s[0], small.step_s[0]])


def test_ranks_that_share_a_place_are_replicas(tmp_path: Path) -> None:
    """Two tensor ranks of one data rank and stage are two workers that wait for each other at the clip."""
    job = Job(dp=2, pp=2, seconds=long)
    rows = [row | {"rank": row["rank"] + 50 * lane} for row in job.rows for lane in (0, 1)]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "trace.parquet")
    found = measured(tmp_path / "trace.parquet")
    assert found.replayed == pytest.approx(job.step_s)
    assert found.gpus == 8


def test_a_circle_is_an_error(tmp_path: Path) -> None:
    """Sends in an order that no program has end in one line, not in a replay that never ends."""
    rows = Job(pp=2, micro_batches=2).rows
    for row in rows:
        if row["optype"] in ("backward-compute", "backward-recv") and row["stage"] == 0:
            row["start_ts"] -= 70
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "trace.parquet")
    with pytest.raises(ValueError, match="in a circle in every step"):
        build_model(read_trace(tmp_path / "trace.parquet").found)


WRONG: dict[str, tuple[dict[str, list[Any]], str]] = {
    "no type": ({"start_ts": [0.5], "duration": [1.5]}, "no column optype"),
    "no length": ({"start_ts": [0.5], "optype": ["gc"]}, "no column duration or end_ts"),
    "no row": ({"start_ts": [], "duration": [], "optype": pa.array([], pa.string())}, "no usable row"),
    "no known type": ({"start_ts": [0.5], "duration": [1.5], "optype": ["nap"]}, "no usable row among 1"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_files_are_one_line(name: str, tmp_path: Path) -> None:
    """A file without what an operation trace needs is refused in one line with the file and what is missing."""
    columns, words = WRONG[name]
    parquet.write_table(pa.table(columns), tmp_path / "wrong.parquet")
    with pytest.raises(ValueError, match=words) as raised:
        read_trace(tmp_path / "wrong.parquet")
    assert "wrong.parquet" in str(raised.value)
    assert "\n" not in str(raised.value)


NO_TEXT = b"optype,start_ts,duration\n\xff\xfe,0.5,1.5\n"


@pytest.mark.parametrize("content", [b"", b"PAR1 and no more", b"\x00\xff\x00", b'"a\n', NO_TEXT], ids=repr)
def test_other_files_are_one_line(content: bytes, tmp_path: Path) -> None:
    """Empty, truncated and binary files are refused in one line."""
    file = tmp_path / "wrong"
    file.write_bytes(content)
    with pytest.raises(ValueError, match="wrong") as raised:
        read_trace(file)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("text", ["world_size: many", "trial_name: x", "dp_size: 0", "dp_size: -4", "\udcff"], ids=repr)
def test_wrong_descriptions_are_one_line(text: str, tmp_path: Path) -> None:
    """A description without sizes, or with sizes that are none, is refused in one line."""
    file = tmp_path / "meta.yaml"
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ValueError, match=r"meta\.yaml"):
        read_meta(file)
