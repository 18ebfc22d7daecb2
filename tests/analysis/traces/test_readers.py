"""Readers of other programs' logs: real traces agree with their counts, and every format gives the same table."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.traces import bounded, kineto
from analysis.traces.bounded import TraceError
from analysis.traces.reading import read_logs

REAL = next(
    (place for up in Path(__file__).parents[4:6] if (place := up / "shared" / "data" / "kineto").is_dir()), Path("none")
)
COUNTS = json.loads((REAL / "counts.json").read_text()) if REAL.is_dir() else {}


@pytest.mark.parametrize("name", COUNTS)
def test_real_traces_agree_with_their_counts(name: str) -> None:
    """Events, kernels, NCCL kernels, their time and steps of published traces, AMD's among them, are as counted."""
    found, want = kineto.about(kineto.read(REAL / name)), COUNTS[name]
    for key in ("events", "kernels", "nccl_kernels", "steps"):
        assert found[key] == want[key], key
    assert found["nccl_seconds"] * 1e6 == pytest.approx(want["nccl_us"], abs=1)
    assert (found["rank"], found["world_size"]) == (want["distributed"]["rank"], want["distributed"]["world_size"])


def inspector(rank: int, number: int, seconds: float, **perf: Any) -> dict[str, Any]:
    """A record of NCCL's Inspector, verbose."""
    end = 1_752_867_229_000_000 + number * 100_000
    channel = {"channel_id": 0, "kernel_start_ts": end - round(seconds * 1e6), "kernel_stop_ts": end}
    coll = {"coll": "ReduceScatter", "coll_sn": number, "coll_msg_size_bytes": 4096, "coll_timing_source": "kernel_gpu"}
    times = {"coll_start_ts": end - 70_000, "coll_stop_ts": end - 69_990, "kernel_events": [channel]}
    return {
        "header": {"id": "0xe62d", "rank": rank, "n_ranks": 2, "nnodes": 1},
        "metadata": {"inspector_output_format_version": "v4.0", "hostname": "h1", "pid": 70 + rank},
        "coll_perf": {**coll, "coll_exec_time_us": round(seconds * 1e6), "event_trace_ts": times, **perf},
    }


def recorder(rank: int) -> dict[str, Any]:
    """A dump of the Flight Recorder."""
    entry = {
        "record_id": 0,
        "process_group": ("3", "dp"),
        "collective_seq_id": 7,
        "p2p_seq_id": 0,
        "profiling_name": "nccl:_all_gather_base",
        "time_created_ns": 1_724_779_239_000_000_000,
        "time_discovered_started_ns": 1_724_779_239_400_000_000,
        "time_discovered_completed_ns": 1_724_779_239_900_000_000,
        "duration_ms": 31.5,
        "input_sizes": [[3, 4]],
        "output_sizes": [[6, 4]],
        "input_dtypes": ["BFloat16"],
        "is_p2p": False,
        "frames": [{"name": "step", "filename": "train.py", "line": 9}],
    }
    pair = {"is_p2p": True, "p2p_seq_id": 2, "profiling_name": "nccl:send 1->0", "duration_ms": None}
    groups = {"3": {"name": "3", "desc": "dp", "ranks": "[4, 6]"}}
    return {"version": "2.4", "rank": rank, "pg_config": groups, "entries": [entry, {**entry, **pair}]}


def trace(*events: dict[str, Any]) -> dict[str, Any]:
    """A Kineto trace of rank 5."""
    return {
        "schemaVersion": 1,
        "distributedInfo": {"backend": "nccl", "rank": 5, "world_size": 6},
        "traceEvents": events,
    }


def test_inspector_records_become_operations(tmp_path: Path) -> None:
    """Kind, number, bytes, entry, start and end of a record come through; a process is named by its rank."""
    place = tmp_path / "log.jsonl.gz"
    place.write_bytes(
        gzip.compress("".join(json.dumps(inspector(at, 3, 0.02 + at / 50)) + "\n" for at in (0, 1)).encode())
    )
    table = read_logs([place]).operations
    assert (table.ranks, table.machines, table.kinds) == (("rank 0", "rank 1"), ("h1", "h1"), ("ReduceScatter",))
    assert table.seconds.tolist() == [0.02, 0.04]
    assert (table.end - table.entry).tolist() == pytest.approx([0.07, 0.07], abs=1e-5)
    assert (table.index.tolist(), table.bytes.tolist()) == ([3, 3], [4096, 4096])


def test_an_incomplete_last_line_is_left_out(tmp_path: Path) -> None:
    """The log of a job that still runs ends within a line: what came before counts, and the file is marked."""
    place = tmp_path / "log"
    place.write_text(json.dumps(inspector(0, 1, 0.3)) + "\n" + json.dumps(inspector(0, 2, 0.4))[:-30])
    logs = read_logs([place])
    assert (logs.files[0]["cut_off"], logs.operations.seconds.tolist()) == (True, [0.3])


@pytest.mark.parametrize("pickled", [True, False])
def test_flight_recorder_dumps_become_operations(tmp_path: Path, pickled: bool) -> None:
    """JSON and pickle give the same: sizes in bytes, the job's rank of a peer, measured or observed seconds."""
    place = tmp_path / "nccl_trace_rank_6"
    place.write_bytes(pickle.dumps(recorder(6), 2) if pickled else json.dumps(recorder(6)).encode())
    table = read_logs([place]).operations
    assert table.kinds == ("AllGather", "Send")
    assert table.ranks == ("rank 4", "rank 6")
    assert (table.rank.tolist(), table.peer.tolist(), table.index.tolist()) == ([1, 1], [-1, 0], [7, 2])
    assert table.seconds.tolist() == pytest.approx([0.0315, 0.5])
    assert table.bytes.tolist() == [48, 48]


def test_a_kernel_is_matched_with_its_launch(tmp_path: Path) -> None:
    """An NCCL kernel takes entry from the host's call with its correlation, and its step from when it was asked for."""
    about = {"Collective name": "allreduce", "In msg nelems": 9, "Out msg nelems": 9, "dtype": "Float"}
    group = {"Process Group Name": "0", "Process Group Description": "world", "Process Group Ranks": "[0, 5]"}
    events = (
        {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#3", "ts": 100, "dur": 50},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunch", "ts": 140, "dur": 2, "args": {"correlation": 8}},
        {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", "ts": 160, "dur": 25,
         "args": {"correlation": 8, "stream": 20, **about, **group}},
    )  # fmt: skip
    place = tmp_path / "t.json"
    place.write_text(json.dumps(trace(*events)))
    table = read_logs([place]).operations
    assert (table.ranks, table.kinds, table.communicators) == (
        ("rank 5",),
        ("AllReduce",),
        ("world 0 of ranks 0…5 (2)",),
    )
    assert (table.entry * 1e6).tolist() == pytest.approx([140])
    assert ((table.end - table.start) * 1e6).tolist() == pytest.approx([25])
    assert (table.step.tolist(), table.bytes.tolist()) == ([3], [36])


class Evil:
    """Runs a program when it is unpickled."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return eval, ("open('/tmp/unpickled-by-a-test', 'w')",)


HOSTILE = {
    "empty": (b"", "is empty"),
    "text": (b"hello there", "is no log that is known"),
    "cut gzip": (gzip.compress(json.dumps(trace({"ph": "X", "ts": 1})).encode())[:-9], "cut off or damaged"),
    "cut": (json.dumps(trace({"ph": "X", "ts": 1, "dur": 2})).encode()[:-9], "cut off"),
    "not JSON": (b'{"traceEvents": [{"ph": X}]}', "no valid JSON"),
    "no events": (b'{"schemaVersion": 1}', "holds no events"),
    "deep": (b'{"traceEvents": [' + b"[" * 200_000, "nested too deeply"),
    "not UTF-8": (b'{"traceEvents": [{"name": "\xff\xfe"}]}', "UTF-8"),
    "program": (pickle.dumps({"entries": [Evil()]}), "more than plain data"),
    "memo": (b"\x80\x02}r\xff\xff\xff\x7f.", "numbers an object"),
    "pickled list": (pickle.dumps([3], 2), "no dump of the Flight Recorder"),
    "no rank": (json.dumps({"entries": [], "pg_config": {}}).encode(), "which rank"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_no_log_is_one_line(name: str, tmp_path: Path) -> None:
    """A file that is empty, cut off, damaged or made to do harm is refused in one line that names it."""
    content, why = HOSTILE[name]
    place = tmp_path / "dump"
    place.write_bytes(content)
    with pytest.raises(TraceError, match=why) as refused:
        read_logs([place])
    assert str(place) in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not Path("/tmp/unpickled-by-a-test").exists()


def test_a_value_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gzip file that expands to one endless text is given up once the longest value is passed, not at its end."""
    monkeypatch.setattr(bounded, "VALUE_CHARACTERS", 3 << 20)
    place = tmp_path / "bomb.json.gz"
    place.write_bytes(gzip.compress(b'{"traceEvents": [{"name": "' + b"a" * (40 << 20)))
    with pytest.raises(TraceError, match="more than 3 MB"):
        read_logs([place])


def test_formats_are_not_mixed(tmp_path: Path) -> None:
    """Logs of two formats, which number ranks differently, are refused together."""
    (tmp_path / "a").write_text(json.dumps(inspector(0, 1, 0.3)))
    (tmp_path / "b_1").write_text(json.dumps(recorder(1)))
    with pytest.raises(TraceError, match="one format"):
        read_logs([tmp_path])


def test_values_that_lie_are_unknown(tmp_path: Path) -> None:
    """Numbers that are texts, endless or negative become unknown; nothing fails."""
    place = tmp_path / "log"
    place.write_text(json.dumps(inspector(1, 2, 0.1, coll_exec_time_us="9", coll_sn=-4, coll_msg_size_bytes=1e300)))
    table = read_logs([place]).operations
    assert np.isnan([*table.seconds, *table.bytes]).all()
    assert table.index.tolist() == [-1]
