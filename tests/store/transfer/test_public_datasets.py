"""Public data sets as recordings; the archives here have the published shapes in small."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from store.recording import RecordingError
from store.transfer.public_datasets import BEGIN, SECOND, read

STEP = 300 * SECOND


def test_asd_is_judged_where_it_has_labels(tmp_path: Path) -> None:
    """A label of one machine is a fault; what strikes many at once, and the part without labels, are not judged."""
    label = np.zeros((5, 40), np.uint8)
    label[3, 4:9] = 1
    label[:, 20:23] = 1
    label[1, 18:26] = 1
    values = np.arange(5 * 40 * 2, dtype=np.float32).reshape(5, 40, 2)
    np.savez(tmp_path / "asd.npz", fit=np.zeros((5, 10, 2), np.float32), test=values, label=label)
    ((name, tables, labels),) = read("asd", tmp_path / "asd.npz")
    assert (name, labels["machines"], labels["step_seconds"]) == ("asd", 5, 300.0)
    fault = {"machine": "server-03", "device": None, "kind": "labelled"}
    assert labels["faults"] == [{**fault, "start": BEGIN + 14 * STEP, "end": BEGIN + 19 * STEP}]
    assert labels["unjudged"] == [
        {"start": BEGIN, "end": BEGIN + 10 * STEP},
        {"start": BEGIN + 28 * STEP, "end": BEGIN + 36 * STEP},
    ]
    columns = tables["server"]
    row = 10 * 5 + 2  # the first judged step of the third machine
    assert (columns["machine"][row], columns["metric_01"][row]) == ("server-02", values[2, 0, 1])


def test_jumpstarter_and_smd(tmp_path: Path) -> None:
    """Series that differ in length end together; every label of a machine that has no peers is its own."""
    label = np.zeros((8, 30), np.uint8)
    label[6, 7:11] = 1
    np.savez(tmp_path / "js.npz", test=np.ones((8, 30, 3)), label=label)
    ((_, tables, labels),) = read("jumpstarter", tmp_path / "js.npz")
    assert [(one["machine"], one["start"]) for one in labels["faults"]] == [("server-06", BEGIN + 7 * STEP)]
    assert len(tables["server"]["time"]) == 240
    arrays = {"3-2/test": np.ones((20, 2)), "3-2/label": np.r_[np.ones(4), np.zeros(16)]}
    arrays |= {"3-9/test": np.ones((17, 2)), "3-9/label": np.zeros(17)}
    np.savez(tmp_path / "smd.npz", **arrays)
    ((_, tables, labels),) = read("smd", tmp_path / "smd.npz")
    assert ([one["machine"] for one in labels["faults"]], len(tables["server"]["time"])) == (["machine-3-2"], 34)


def test_mlperf_power_keeps_one_node_a_sensor(tmp_path: Path) -> None:
    """A recording for each run and side, in the store's time; no machine is faulty."""
    rows = {
        "run": ["a", "a", "a", "a", "b"],
        "side": ["ac", "ac", "ac", "dc", "ac"],
        "node": [4, 5, 6, 4, 9],
        "sensor_group": [1, 1, 2, 1, 3],
        "t_ms": [1000, 1000, 3007, 1000, 5000],
        "watts": [310, 310, 420, 333, 275],
    }
    pq.write_table(pa.table(rows), tmp_path / "p.parquet")
    found = list(read("mlperf_power", tmp_path / "p.parquet"))
    assert [(name, labels["machines"], labels["faults"]) for name, _, labels in found] == [
        ("a-ac", 2, []),
        ("a-dc", 1, []),
        ("b-ac", 1, []),
    ]
    first = found[0][1]["power"]
    assert first["machine"].tolist() == ["node-04", "node-06"]
    assert (first["time"].tolist(), first["node_power_watts"].tolist()) == ([10**9, 3007 * 10**6], [310.0, 420.0])


@pytest.mark.parametrize(
    ("kind", "file", "said"),
    [("gremlin", "x", "no data set is called gremlin; there are asd"), ("asd", "absent", "is not a file")],
)
def test_what_is_no_data_set_is_said_in_one_line(tmp_path: Path, kind: str, file: str, said: str) -> None:
    """The kind or the file is named."""
    with pytest.raises(RecordingError, match=rf"^[^\n]*{said}[^\n]*$"):
        list(read(kind, tmp_path / file))


def test_a_single_array_or_words_for_an_archive(tmp_path: Path) -> None:
    """A file that is no archive is refused as such, without advice of numpy's; a damaged one is refused too."""
    path = tmp_path / "one.npz"
    with path.open("wb") as file:
        np.save(file, np.arange(7))
    with pytest.raises(RecordingError, match=r"one\.npz is no \.npz archive"):
        list(read("asd", path))
    path.write_text("words\n")
    with pytest.raises(RecordingError, match=r"one\.npz is no \.npz archive"):
        list(read("asd", path))
    np.savez(path, fit=np.ones(300), test=np.ones(300))
    whole = path.read_bytes()
    path.write_bytes(whole[:200].replace(b"\x00\x80?", b"\x01\x81?") + b"\x55" * 900 + whole[1100:])
    with pytest.raises(RecordingError, match=r"one\.npz is not as asd is published"):
        list(read("asd", path))


def test_an_archive_without_its_arrays(tmp_path: Path) -> None:
    """Another archive is refused by name."""
    np.savez(tmp_path / "other.npz", values=np.ones(3))
    with pytest.raises(RecordingError, match=r"other\.npz is not as smd is published|not as asd is published"):
        list(read("asd", tmp_path / "other.npz"))
