"""Recordings: ours, and files that others wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from store.open import open_store
from store.recording import Recording, RecordingError
from store.schema.contract import StoreError
from store.schema.sample import Batch, Sample
from store.sqlite.embedded import Embedded
from store.transfer.export import export, write_recording
from tests.store.conftest import rows

HOST = {"time": np.array([30, 10, 20]), "machine": ["m3", "m1", "m2"], "cpu_utilization_ratio": [0.3, np.nan, 0.2]}


def foreign(folder: Path, **columns: Any) -> Path:
    """A recording with one table as a third party might write it."""
    folder.mkdir()
    pq.write_table(pa.table(columns), folder / "gpu.parquet")
    return folder


def test_arrays_become_a_recording(tmp_path: Path) -> None:
    """Arrays and lists are written in order of time, NaN as null, with the labels beside them."""
    write_recording(tmp_path / "r", {"host": HOST}, {"task": "t", "faults": []})
    assert rows(Recording(tmp_path / "r"), "host") == [
        {"time": 10, "machine": "m1"},
        {"time": 20, "machine": "m2", "cpu_utilization_ratio": 0.2},
        {"time": 30, "machine": "m3", "cpu_utilization_ratio": 0.3},
    ]
    assert json.loads((tmp_path / "r" / "labels.json").read_text()) == {"task": "t", "faults": []}
    assert [path.name for path in tmp_path.iterdir()] == ["r"]


def test_a_full_folder_is_refused_or_replaced(tmp_path: Path) -> None:
    """Nothing is overwritten unless asked for, and then nothing of the old is left."""
    folder = tmp_path / "r"
    write_recording(folder, {"host": HOST, "gpu": HOST})
    with pytest.raises(RecordingError, match="is there already"):
        write_recording(folder, {"host": HOST})
    write_recording(folder, {"host": HOST}, overwrite=True)
    assert Recording(folder).tables() == ("host",)
    assert [path.name for path in tmp_path.iterdir()] == ["r"]


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    """A table without `machine` is refused and no half-written folder remains."""
    with pytest.raises(RecordingError, match="table gpu has no column machine"):
        write_recording(tmp_path / "r", {"host": HOST, "gpu": {"time": [1]}})
    assert list(tmp_path.iterdir()) == []


def test_files_of_others(tmp_path: Path) -> None:
    """Any column order, small integers, single precision, dictionary and large strings read as the store's types."""
    folder = foreign(
        tmp_path / "a=b",
        odd=pa.array([[1], [2]]),
        novel=pa.array([5, 6], pa.int8()),
        power_watts=pa.array([200, 210], pa.int32()),
        ecc_corrected_total=pa.array([1, 2**64 - 1], pa.uint64()),
        temperature_celsius=pa.array([50.5, float("nan")], pa.float32()),
        machine=pa.array(["m9", "m8"]).dictionary_encode(),
        gpu=pa.array([1, 0], pa.int16()),
        site=pa.array(["x", None], pa.large_string()),
        time=pa.array([70, 60], pa.uint64()),
    )
    found = Recording(folder).read("gpu")
    assert found.column_names[:3] == ["time", "machine", "gpu"]
    assert {name: str(kind) for name, kind in zip(found.column_names, found.schema.types, strict=True)} == {
        "time": "int64",
        "machine": "string",
        "gpu": "string",
        "novel": "int64",
        "power_watts": "double",
        "ecc_corrected_total": "int64",
        "temperature_celsius": "double",
        "site": "string",
    }
    assert rows(Recording(folder), "gpu", 60) == [
        {"time": 70, "machine": "m9", "gpu": "1", "novel": 5, "power_watts": 200.0, "ecc_corrected_total": 1}
        | {"temperature_celsius": 50.5, "site": "x"}
    ]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"machine": ["m"]}, "column time is missing"),
        ({"time": [1]}, "column machine is missing"),
        ({"time": [1.5], "machine": ["m"]}, "column time must hold integers"),
        ({"time": pa.array([1], pa.timestamp("ns")), "machine": ["m"]}, "column time must hold integers"),
        ({"time": [1], "machine": [4]}, "column machine must hold strings"),
        ({"time": [1], "machine": pa.array([None], pa.string())}, "column machine has rows without a value"),
        ({"time": [1], "machine": ["m"], "power_watts": ["much"]}, "column gpu.power_watts must hold numbers"),
    ],
)
def test_wrong_columns_are_named(tmp_path: Path, columns: dict[str, Any], said: str) -> None:
    """A column that is missing or of the wrong type is one line with file and column."""
    folder = foreign(tmp_path / "r", **columns)
    with pytest.raises(RecordingError) as caught:
        Recording(folder).read("gpu")
    assert f"{folder / 'gpu.parquet'}: {said}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_no_recording_is_said(tmp_path: Path) -> None:
    """No folder, an empty one, a file that is not Parquet: one line each."""
    with pytest.raises(RecordingError, match="is not a folder"):
        Recording(tmp_path / "absent")
    with pytest.raises(RecordingError, match=r"holds no \.parquet file"):
        Recording(tmp_path)
    (tmp_path / "host.parquet").write_text("time,machine\n1,m\n")
    with pytest.raises(RecordingError, match=r"host\.parquet cannot be read as Parquet: .*[^\n]$"):
        Recording(tmp_path).read("host")


def test_only_the_span_is_read(tmp_path: Path) -> None:
    """Row groups outside the span are not touched: damage there goes unseen."""
    times = np.arange(1, 400_001)
    write_recording(tmp_path / "r", {"host": {"time": times, "machine": ["m"] * len(times), "novel": times * 0.7}})
    file = tmp_path / "r" / "host.parquet"
    groups = pq.ParquetFile(file).metadata
    assert groups.num_row_groups > 2
    last = groups.row_group(groups.num_row_groups - 1).column(2)
    begin = last.dictionary_page_offset or last.data_page_offset
    with file.open("r+b") as raw:
        raw.seek(begin)
        raw.write(b"\0" * last.total_compressed_size)
    assert Recording(tmp_path / "r").read("host", 100, 200).num_rows == 100
    with pytest.raises(RecordingError, match="cannot be read"):
        Recording(tmp_path / "r").read("host", 399_000)


def test_span_sees_gaps_within_a_row_group(tmp_path: Path) -> None:
    """The span after a time begins with the next row, however the rows are grouped on disk."""
    folder = foreign(tmp_path / "r", time=[5, 900, 20], machine=["m1", "m3", "m2"])
    recording = Recording(folder)
    assert [recording.span(after) for after in (0, 5, 20, 899, 900)] == [(5, 900), (20, 900), *2 * [(900, 900)], None]


def test_export_streams_and_reports(tmp_path: Path) -> None:
    """An export goes in pieces, tells how far it is, and holds exactly the span."""
    store = Embedded(tmp_path / "s.db")
    minute = 60 * 10**9
    store.write([Batch("m1", n * minute, (Sample("host", {"processes_running": n}),)) for n in range(1, 61)])
    store.write([Batch("m1", 40 * minute, (Sample("event", {"source": "kernel_log", "code": "xid:79"}),))])
    heard: list[int] = []
    assert export(store, tmp_path / "r", (5 * minute, 45 * minute), heard.append) == 41
    assert heard == sorted(heard)
    assert (len(heard) > 3, heard[-1]) == (True, 45 * minute)
    found = Recording(tmp_path / "r")
    assert found.read("host").column("time").to_pylist() == [n * minute for n in range(6, 46)]
    assert rows(found, "event")[0]["code"] == "xid:79"
    with pytest.raises(RecordingError, match="nothing in that span"):
        export(store, tmp_path / "none", (70 * minute, 80 * minute))
    assert not (tmp_path / "none").exists()
    store.close()


def test_a_recording_takes_no_more(tmp_path: Path) -> None:
    """Writing to a recording is refused in one line."""
    write_recording(tmp_path / "r", {"host": HOST})
    with pytest.raises(StoreError, match="is read-only"):
        open_store(str(tmp_path / "r")).write([])


def test_places(tmp_path: Path) -> None:
    """A folder is a recording, a .db file an embedded store, and anything else is explained."""
    write_recording(tmp_path / "r", {"host": HOST})
    assert isinstance(open_store(str(tmp_path / "r")), Recording)
    store = open_store(str(tmp_path / "new.db"), create=True)
    assert isinstance(store, Embedded)
    store.close()
    with pytest.raises(StoreError, match="is no store: name"):
        open_store(str(tmp_path / "what.txt"))
