"""What the fuzz has found, each to stay mended."""

from __future__ import annotations

import io
import zipfile
from contextlib import closing, suppress
from pathlib import Path
from random import Random

import pytest

from agent.nvml.client import ChildError
from analysis.whatif.trace_file import read_trace
from detector.alerts.delivery_log import read_delivery_log
from detector.alerts.sinks.command import Command, CommandConfig
from store.schema.sample import Batch, Sample, Value
from store.sqlite.embedded import Embedded
from tests.cli.conftest import run
from tests.fuzz.readers import READERS, SaidByChild


def _of_a_version_to_come() -> bytes:
    """A zip archive, the directory of which asks for version 25.5."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("each_encode.npy", b"5")
    data = bytearray(out.getvalue())
    data[data.index(b"PK\x01\x02") + 6] = 255
    return bytes(data)


_DEEP = b"[" * 100_000


FOUND = {
    **{
        f"brackets without end in {name}": (name, begin + _DEEP)
        for name, begin in (
            ("delivery log", b'{"other":'),
            ("command's runs", b'[{"other":'),
            ("calibration", b'{"other":'),
            ("healthy run", b'{"other":'),
            ("configuration", b"x = "),
            ("topology", b"x = "),
        )
    },
    "a trace with a column twice": (
        "operation trace",
        b"optype,start_ts,duration,rank,rank\nforward-compute,1.5,0.7,3,5\n",
    ),
    "brackets without end in an answer with zoom requests": ("zoom requests", b"[" * 100_000),
    "no UTF-8 in a delivery log": ("delivery log", b'{"error":"\xe1("}'),
    "an answer without a column of times": (
        "influx json",
        b'{"results":[{"series":[{"name":"gpu","tags":{"machine":"m1"},"columns":["tim"],"values":[[5]]}]}]}',
    ),
    "an answer of Flux with columns without a name": (
        "influx flux",
        b"#datatype,string,long,long\r\n#group,false,false,false\r\n#default,_result,,\r\n,result,a,a\r\n,,0,1\r\n",
    ),
    "an answer of Flux without times": (
        "influx flux",
        b"#datatype,string,long,dateTime:RFC3339Nano,string,string,double,long\r\n"
        b"#group,false,false,false,true,true,false,f\xcclse\r\n"
        b"#default,_result,,ime,machine,gpu,power_watts,_row\r\n"
        b",,0,2024-05-01T00:00:00.5Z,m1,0,311.5,1\r\n"
        b",,\xde,2024-05-01T00:00:01Z,m1,0,,1\r\n"
        b"\r\n",
    ),
    "a child of NVML with a name that is no column": (
        "nvml child",
        b'{"driver":"1","there":{"0":["GPU-a",false]},"places":{"0":["1","2"]},"instances":{},"lost":{},"unread":{}}\n'
        b'{"gpus":{"0":{"power watts":1.5}},"lost":{},"unread":{},"events":[],"dropped":0}\n',
    ),
    "a sample of perf at no time": ("perf", b" " + b"9" * 400 + b".25:  7f11 step+0x3c (/x/a.so)\n"),
    "a line of the burn-in without its figures": ("checks", b'{"wrong": {"0": 1}}'),
    "a bandwidth with two points": ("checks", b" 65536 5000 391.2 0.7389.7 0.743\n# Avg bus bandwidth : 3-4\n"),
    "a diagnosis with brackets without end": ("checks", b"{" + b'"a":[' * 50_000),
    "Parquet of which only the ends are right": ("operation trace", b"PAR1" + b"\x7f" * 64 + b"\x09\0\0\0PAR1"),
    "an archive of a version to come": ("minder model", _of_a_version_to_come()),
    "a data set of a version to come": ("public data", _of_a_version_to_come()),
    "an answer with rows of other lengths": (
        "influx json",
        b'{"results":[{"series":[{"name":"gpu","tags":{"machine":"m1"},"columns":["time","a"],"values":[[5]]}]}]}',
    ),
}


@pytest.mark.parametrize("what", FOUND)
def test_what_was_found_stays_mended(what: str, tmp_path: Path) -> None:
    """The input ends in an answer or in the reader's own error."""
    name, data = FOUND[what]
    reader = next(reader for reader in READERS if reader.name == name)
    for seed in range(10):
        with suppress(*reader.errors):
            reader.read(data, tmp_path, Random(seed))


def test_a_damaged_byte_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A delivery log that is no UTF-8 is replaced; the record that bounds the command is for people to look at."""
    file = tmp_path / "runs.json"
    file.write_bytes(b'["\xe1("]')
    assert read_delivery_log(file) is None
    with pytest.raises(ValueError, match="check it, then remove it"):
        Command(CommandConfig(run=("/bin/true",)), file, lambda: 10**18)
    assert "cannot be read" in caplog.text


def test_brackets_without_end_are_no_answer(tmp_path: Path) -> None:
    """A child of NVML that answers with them has to go, like one that answers with no JSON at all."""
    (tmp_path / "said").write_bytes(b'{"gpus":' + b"[" * 300_000 + b"\n")
    with pytest.raises(ChildError, match="gives an answer that is none"):
        SaidByChild(tmp_path / "said").answer(0.0)


_AT = 1_700_000_000
_SILENCE = {"task": "t", "kind": "evidence", "metric": "event.silent", "level": "crit", "message": "is silent"}
ROWS: dict[str, tuple[tuple[str, ...], str, dict[str, Value], str]] = {
    "a phase below any clock": (
        ("report", "startup"),
        "startup",
        {"gpu": "0", "pid": 41, "start_time_seconds": _AT + 1.5, "nccl_loaded_seconds": -1e300},
        "m3",
    ),
    "a count beyond what a double holds": (("jobs",), "job_log", {"job": "j", "nan_total": 2**63 - 1}, "m3"),
    "a name that ends in a zero byte": (("jobs",), "job_log", {"job": "j\0", "step": 7.0}, "m3"),
    "a silence that began at no time": (("status", "--at", f"{_AT + 5}000000000"), "verdict", _SILENCE, "m3"),
    "a verdict from before all times": (("show", "1"), "verdict", {**_SILENCE, "since": -(2**63) + 1}, "silent"),
    "a verdict that begins after its end": (("show", "1"), "verdict", {**_SILENCE, "since": 2**63 - 1}, "silent"),
}


@pytest.mark.parametrize("what", ROWS)
def test_a_row_stops_no_command(what: str, tmp_path: Path) -> None:
    """Whatever one agent has written, a command shows it beside the rows of the others."""
    words, table, values, shown = ROWS[what]
    other = {"gpu": "0", "pid": 43, "start_time_seconds": _AT + 0.5, "nccl_loaded_seconds": 2.0}
    with closing(Embedded(tmp_path / "s.db")) as store:
        store.write(
            [Batch("m5", _AT * 10**9, (Sample("startup", other), Sample("host", {"cpu_utilization_ratio": 0.5})))]
        )
        store.write([Batch("m3", _AT * 10**9 + 7, (Sample(table, values),))])
    done = run(*words, "--store", tmp_path / "s.db")
    assert "Traceback" not in done.stderr
    assert done.returncode in (0, 2), done.stderr
    assert shown in done.stdout


@pytest.mark.parametrize("number", [float("inf"), float("-inf"), 1e300, float(2**63)])
def test_a_start_at_no_time_is_passed_over(tmp_path: Path, number: float) -> None:
    """An agent that says that its processes started then stops no command that reads starts."""
    begin = 1_700_000_000
    starts = [("m31", begin - 45.0), ("m37", begin - 41.0), ("m41", number)]
    with closing(Embedded(tmp_path / "s.db")) as store:
        for machine, at in starts:
            times = {
                "start_time_seconds": at,
                "nccl_loaded_seconds": 3.0,
                "communicator_begun_seconds": 7.0,
                "first_operation_seconds": 9.0,
            }
            rows = [Sample(table, {"gpu": "0", "pid": 53, **times}) for table in ("startup", "start")]
            nccl = {"gpu": "0", "slot": "0", "comm": "5e8f", "pid": 53, "rank": 0, "ranks": 3, "operations_total": 11}
            store.write([Batch(machine, begin * 10**9, (*rows, Sample("nccl", nccl)))])
    for words in (("tasks",), ("history",), ("report", "startup"), ("report", "startup", "--days", "2")):
        done = run(*words, "--store", tmp_path / "s.db")
        assert done.returncode in (0, 1), done.stderr
        assert done.stderr.count("\n") <= 1
    assert "m37" in run("report", "startup", "--store", tmp_path / "s.db").stdout


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("row", [b"3,5,7,\xef\n", b"3,\xef\n"])
def test_a_trace_of_operations_that_is_no_text_is_refused(tmp_path: Path, row: bytes) -> None:
    """Also far into the file, in a row of another number of columns, of which a traceback was printed."""
    (tmp_path / "trace.csv").write_bytes(b"rank,step\n" + 17_000 * b"2,11\n" + row)
    with pytest.raises(ValueError, match="no text in UTF-8"):
        read_trace(tmp_path / "trace.csv")
