"""What the fuzz has found, each to stay mended."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from agent.nvml.client import ChildError
from detector.alerts.delivery_log import read_delivery_log
from detector.alerts.sinks.command import Command, CommandConfig
from tests.fuzz.readers import READERS, SaidByChild

FOUND = {
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
