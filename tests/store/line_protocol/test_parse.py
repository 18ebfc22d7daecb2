"""What an agent has written as lines is read back as the same rows."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.line_protocol.parse import batches_of, members
from store.line_protocol.write import lines_of, pack, unpack
from store.schema.contract import StoreError
from store.schema.sample import Batch, Sample

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
HOSTS = st.fixed_dictionaries(
    {}, optional={"cpu_utilization_ratio": NUMBERS, "context_switches_total": st.integers(0, 2**62)}
)
EVENTS = st.fixed_dictionaries(
    {"source": TEXTS, "code": TEXTS}, optional={"message": TEXTS, "until": st.integers(1, 2**60)}
)
NOVELS = st.fixed_dictionaries({}, optional={"real": NUMBERS, "whole": st.integers(-(2**62), 2**62), "words": TEXTS})
SAMPLES = st.one_of(
    st.builds(Sample, st.just("host"), HOSTS),
    st.builds(Sample, st.just("event"), EVENTS),
    st.builds(Sample, st.just("novel"), NOVELS),
)
BATCHES = st.lists(st.builds(Batch, TEXTS, st.integers(1, 2**60), st.lists(SAMPLES, max_size=5).map(tuple)), max_size=4)


def rows(batches: list[Batch]) -> list[tuple[Any, ...]]:
    """Every sample with its time and machine."""
    return [(one.time, one.machine, sample.table, dict(sample.values)) for one in batches for sample in one.samples]


@given(BATCHES)
def test_there_and_back(batches: list[Batch]) -> None:
    """Texts, numbers and keys of any kind come back as they were, in their order, packed or not."""
    lines = unpack(pack(lines_of(batches))) if any(one.samples for one in batches) else []
    assert rows(batches_of(lines)) == rows(batches)


def test_rows_of_one_moment_are_all_there() -> None:
    """Two events that share time, machine and code come back as two, and a value that is none is left out."""
    twins = tuple(Sample("event", {"source": "xid", "code": "79", "message": text}) for text in ("one", "two"))
    batch = Batch("m1", 17, (*twins, Sample("host", {"cpu_utilization_ratio": math.inf})))
    found = batches_of(lines_of([batch]))
    assert found == [Batch("m1", 17, (*twins, Sample("host", {})))]


STRANGE = [
    b"gpu,machine=a,gpu=\xff _row=1i 1",
    b"gpu,machine=a,gpu=3 _row=1i,x= 1",
    b"gpu,machine=a,gpu=3 _row=1i,x=\xff 1",
    b"gpu,gpu=3 _row=1i 1",
    b"gpu,machine=a _row=1i 99999999999999999999",
    b"gpu,machine=a _row=1i,x=%bi 2" % (b"9" * 5000),
]


@given(st.binary(max_size=60), st.integers(0, 60))
def test_any_bytes_within_a_line(bytes_: bytes, at: int) -> None:
    """Whatever stands within a line, it is read or refused by the one error."""
    whole = b'gpu,machine=a\\ b,gpu=0 _row=1i,power_watts=1.5,name="a\\"b,c" 12345'
    with suppress(StoreError):
        batches_of([whole[:at] + bytes_ + whole[at:]])


@pytest.mark.parametrize(
    "line", [b"", b"host _row=1i 5", b"host,machine=m1 _row=1i", b"host,machine=m1 a=b 7", *STRANGE]
)
def test_no_line_of_ours(line: bytes) -> None:
    """A line that no agent writes is an error that shows it."""
    with pytest.raises(StoreError):
        batches_of([line])


def test_members_of_a_body() -> None:
    """A body of several packed pieces comes apart into the same pieces; a broken one is an error."""
    pieces = [pack([b"host,machine=m%d _row=1i 3" % n]) for n in range(3, 6)]
    assert members(b"".join(pieces)) == pieces
    with pytest.raises(StoreError, match="breaks off"):
        members(b"".join(pieces)[:-4])
    with pytest.raises(StoreError):
        members(b"no gzip")
