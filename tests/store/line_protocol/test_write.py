"""Line protocol: what is escaped, what is left out, what becomes a series."""

from __future__ import annotations

import gzip
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.line_protocol.write import FIELD_KEYS, column_of, field_name, lines_of, pack, tag, unpack, untag
from store.schema.catalogue import METRICS, TABLES
from store.schema.contract import StoreError
from store.schema.sample import Batch, Sample, Value


def one(table: str, values: dict[str, Value], machine: str = "m1", time: int = 17) -> str:
    """The line of one sample."""
    (line,) = lines_of([Batch(machine, time, (Sample(table, values),))])
    return line.decode()


def test_a_line() -> None:
    """Machine and device are tags; whole numbers carry an i, texts quotes; what is not known is not there."""
    values = {"gpu": "3", "power_watts": 281.5, "ecc_corrected_total": 2**63 - 1, "temperature_celsius": None}
    assert (
        one("gpu", values)
        == "gpu,machine=m1,gpu=3 _row=1i,power_watts=281.5,ecc_corrected_total=9223372036854775807i 17"
    )
    nccl: dict[str, Value] = {"gpu": "0", "slot": "1", "comm": 'a"b\\c', "rank": 5, "pid": 77}
    assert one("nccl", nccl) == r'nccl,machine=m1,gpu=0,slot=1 _row=1i,rank=5,pid=77,comm="a\"b\\c" 17'


@pytest.mark.parametrize(
    "odd", [float("nan"), float("inf"), -float("inf"), 2**64, np.float64("nan"), "much"], ids=lambda odd: repr(odd)
)
def test_odd_values_cost_only_themselves(odd: Value) -> None:
    """What is no number, or more than 64 bits hold, is left out; all beside it is written."""
    assert one("gpu", {"gpu": "1", "ecc_corrected_total": odd, "power_watts": 7.5}).endswith(
        " _row=1i,power_watts=7.5 17"
    )


def test_types_follow_the_column() -> None:
    """Whatever type of Python's a value has, its column's type is written."""
    values: dict[str, Value] = {"gpu": 2, "power_watts": 211, "ecc_corrected_total": 9.0, "novel": np.float64(2.5)}
    assert one("gpu", values) == "gpu,machine=m1,gpu=2 _row=1i,power_watts=211.0,novel=2.5,ecc_corrected_total=9i 17"
    assert one("host", {"novel": True}) == "host,machine=m1 _row=1i,novel.int64=1i 17"


def test_a_row_without_values_is_a_line() -> None:
    """That a machine was read is known even where nothing was."""
    assert one("host", {"processes_running": None}) == "host,machine=m1 _row=1i 17"


def test_rows_of_one_moment_stay_separate() -> None:
    """Two events of one kind at one time are two lines of different series; written again they are the same lines."""
    event = {"source": "kernel_log", "code": "xid:79"}
    batch = Batch("m1", 9, tuple(Sample("event", {**event, "device": f"gpu:{n}"}) for n in (4, 6)))
    lines = [line.decode().split(" ")[0] for line in lines_of([batch])]
    assert lines == [
        "event,machine=m1,source=kernel_log,code=xid:79",
        "event,machine=m1,source=kernel_log,code=xid:79,_nth=1",
    ]
    assert lines_of([batch]) == lines_of([batch])


@given(value=st.text(max_size=30))
def test_tags_come_back(value: str) -> None:
    """A tag is one word without line ends or stray separators, and stands for what was written."""
    written = tag(value).decode()
    plain = written.replace("\\,", "").replace("\\=", "").replace("\\ ", "")
    assert not set(plain) & set(",= \\\n\r\0")
    assert untag(written.replace("\\", "")) == value


@given(texts=st.lists(st.text(max_size=30), min_size=1, max_size=5), machine=st.text(max_size=5))
def test_lines_come_back_out_of_a_body(texts: list[str], machine: str) -> None:
    """However many members a body has and whatever stands within quotes, its lines are found again."""
    batches = [Batch(machine, n, (Sample("event", {"message": text}),)) for n, text in enumerate(texts)]
    lines = lines_of(batches)
    assert unpack(pack(lines[:1]) + pack(lines[1:])) == lines if lines[1:] else unpack(pack(lines)) == lines
    assert gzip.decompress(pack(lines)) == b"\n".join(lines) + b"\n"


@pytest.mark.parametrize("name", ["Weird", "a b", "a=1,b", "", "time", "machine", "_row"])
def test_names_are_checked(name: str) -> None:
    """A column that could be mistaken for something else is refused in one line."""
    with pytest.raises(StoreError) as caught:
        lines_of([Batch("m1", 1, (Sample("host", {name: 1.5}),))])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["double", "int64", "string"])
def test_fields_tell_their_column(kind: str) -> None:
    """A column that no catalogue knows has a field for each type; one that is known has one."""
    assert column_of("host", field_name("host", "novel", kind))[0] == "novel"  # type: ignore[arg-type]
    assert field_name("gpu", "power_watts", kind) == "power_watts"  # type: ignore[arg-type]


def series(rounds: int) -> set[bytes]:
    """The series that a machine with 8 GPUs begins in so many rounds, in each of which all that can change does."""
    random_ = random.Random(rounds)
    found = set()
    for at in range(rounds):
        samples = []
        for table in TABLES.values():
            for slot in range(8):
                keys = {key: f"{slot}" if key not in FIELD_KEYS else f"{key}-{at}" for key in table.keys}
                texts = [m.name for m in METRICS.values() if m.table == table.name and m.kind == "text"]
                numbers = [m.name for m in METRICS.values() if m.table == table.name and m.kind != "text"]
                values: dict[str, Value] = {**keys, **{name: f"{name} {at}" for name in texts}}
                samples.append(Sample(table.name, {**values, **{name: random_.randrange(10**6) for name in numbers}}))
        found |= {line.split(b" ")[0] for line in lines_of([Batch("m1", at, tuple(samples))])}
    return found


def test_the_number_of_series_is_bounded() -> None:
    """New processes, communicators, ranks, tasks and libraries at each reading begin no new series."""
    assert series(40) == series(1)
    assert len(series(1)) <= 8 * len(TABLES)
