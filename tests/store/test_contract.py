"""What every store promises, tried on each."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from store.schema.columns import type_of
from store.schema.sample import Batch, Sample
from store.sqlite.embedded import Embedded
from store.transfer.copy import copy
from tests.store.conftest import NUMBER, Fill, rows

INT64 = st.integers(-(2**63), 2**63 - 1)
REAL = st.floats(allow_nan=False, allow_infinity=False)
TEXT = st.text(max_size=20)
VALUES = {
    "gpu": {
        "gpu": TEXT,
        "power_watts": REAL,
        "ecc_corrected_total": INT64,
        "throttle_power_seconds_total": REAL,
        "novel_ratio": REAL,
        "novel_total": INT64,
        "novel_text": TEXT,
    },
    "event": {"source": TEXT | st.sampled_from(["detector", "operator"]), "code": TEXT, "message": TEXT},
    "novel": {"lane": TEXT, "height_metres": REAL},
    "verdict": {"task": TEXT, "since": INT64, "score": REAL},
}


@st.composite
def samples(draw: st.DrawFn) -> Sample:
    """A sample of a table, some values of it missing, some None."""
    table = draw(st.sampled_from(sorted(VALUES)))
    names = draw(st.lists(st.sampled_from(sorted(VALUES[table])), unique=True))
    return Sample(table, {name: draw(st.none() | VALUES[table][name]) for name in names}, draw(st.none() | TIMES))


TIMES = st.integers(1, 2**63 - 2)  # LATEST itself is a bound, and no time of InfluxDB's
EARLY = st.integers(1, 10**12)
SAMPLES = st.lists(samples(), min_size=1, max_size=4).map(tuple)
BATCHES = st.builds(Batch, TEXT, TIMES, SAMPLES)


def plain(found: list[dict[str, object]]) -> list[list[tuple[str, object]]]:
    """Rows without signatures, sorted, so that the order of rows of one time does not matter; -0.0 is 0.0."""

    def number(value: object) -> object:
        return value + 0.0 if isinstance(value, float) else value

    return sorted(
        (sorted((name, number(value)) for name, value in row.items() if name != "signature") for row in found), key=repr
    )


def expected(batches: list[Batch], table: str) -> list[dict[str, object]]:
    """The rows that a store must hand out."""
    return [
        {"time": batch.time if sample.time is None else sample.time, "machine": batch.machine}
        | {name: value for name, value in sample.values.items() if value is not None}
        for batch in batches
        for sample in batch.samples
        if sample.table == table
    ]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batches=st.lists(BATCHES, min_size=1, max_size=6))
@example(batches=[Batch("m7", 3, (Sample("verdict", {"score": -0.0}),))])
def test_rows_come_back(fill: Fill, batches: list[Batch]) -> None:
    """What was written is read, exactly, in order of time; text keeps every character that UTF-8 has."""
    store = fill(batches)
    for table in VALUES:
        assert plain(rows(store, table)) == plain(expected(batches, table))
        times = store.read(table).column("time").to_pylist()
        assert times == sorted(times)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batches=st.lists(BATCHES, min_size=1, max_size=6), bounds=st.tuples(TIMES, TIMES))
def test_a_part_is_a_filter(fill: Fill, batches: list[Batch], bounds: tuple[int, int]) -> None:
    """Reading a part of the time returns exactly those rows of a full read that lie in it."""
    store, (after, until) = fill(batches), sorted(bounds)
    for table in VALUES:
        part = [row for row in rows(store, table) if after < int(str(row["time"])) <= until]
        assert plain(rows(store, table, after, until)) == plain(part)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batches=st.lists(st.builds(Batch, TEXT, EARLY, SAMPLES), min_size=1, max_size=6))
def test_a_second_copy_writes_nothing(fill: Fill, tmp_path: Path, batches: list[Batch]) -> None:
    """Copied twice, every row is in the target once."""
    batches = [replace(batch, samples=tuple(replace(one, time=None) for one in batch.samples)) for batch in batches]
    store, target = fill(batches), Embedded(tmp_path / f"{next(NUMBER)}.copy.db")
    copied, present = copy(store, target, (0, 10**12))
    assert present == 0
    assert copy(store, target, (0, 10**12)) == (0, copied)
    for table in VALUES:
        assert plain(rows(target, table)) == plain(rows(store, table))
    target.close()


def test_span_is_open_then_closed(fill: Fill) -> None:
    """A row at `after` is left out and a row at `until` is in."""
    store = fill([Batch("m01", when, (Sample("host", {"processes_running": when / 7}),)) for when in (30, 10, 20, 40)])
    assert store.read("host", 10, 30).column("time").to_pylist() == [20, 30]
    assert store.read("host", 40).num_rows == 0
    assert store.read("host", 9).column("time").to_pylist() == [10, 20, 30, 40]


def test_columns_can_be_chosen(fill: Fill) -> None:
    """Keys come in any case, of the columns asked for those that are there, and nothing else."""
    values = {"gpu": "1", "power_watts": 281.5, "temperature_celsius": 57.25, "novel": 3}
    store = fill([Batch("m01", 8, (Sample("gpu", values),))])
    found = store.read("gpu", columns=("novel", "power_watts", "absent"))
    assert found.to_pylist() == [{"time": 8, "machine": "m01", "gpu": "1", "power_watts": 281.5, "novel": 3}]
    assert store.read("gpu", columns=()).column_names == ["time", "machine", "gpu"]


def test_span_bounds_all_tables(fill: Fill) -> None:
    """The span reaches from the oldest to the newest row of any table, from a time on, and is None past the end."""
    host = Sample("host", {"processes_running": 2.5})
    store = fill(
        [Batch("m01", 20, (host,)), Batch("m01", 50, (Sample("task", {"task": "t"}),)), Batch("m1", 30, (host,))]
    )
    assert store.span() == (20, 50)
    assert store.span(50) is None
    first, last = store.span(25) or (0, 0)
    assert (25 < first <= 30, last) == (True, 50)


def test_types_follow_the_catalogue(fill: Fill) -> None:
    """Keys and text are strings, counters int64, gauges and counters of seconds doubles, whatever Python type came."""
    values = {"gpu": 3, "power_watts": 211, "ecc_corrected_total": 2**62 + 1, "throttle_power_seconds_total": 1.25}
    table = fill([Batch("m02", 5, (Sample("gpu", values),))]).read("gpu")
    assert table.schema.field("gpu").type == pa.string()
    assert table.schema.field("ecc_corrected_total").type == pa.int64()
    assert table.schema.field("power_watts").type == pa.float64()
    row = table.to_pylist()[0]
    assert (row["gpu"], row["power_watts"]) == ("3", 211.0)
    assert (row["ecc_corrected_total"], row["throttle_power_seconds_total"]) == (2**62 + 1, 1.25)


def test_table_that_is_not_there_is_empty(fill: Fill) -> None:
    """Reading a table that was never written gives its key columns and no row; an unknown one has time and machine."""
    store = fill([Batch("m03", 6, (Sample("host", {"processes_running": 4.0}),))])
    assert store.read("nccl").column_names == ["time", "machine", "gpu", "slot"]
    assert store.read("nonsense").column_names == ["time", "machine"]
    assert (store.read("nccl").num_rows, store.tables()) == (0, ("host",))


def test_not_a_number_is_unknown(fill: Fill) -> None:
    """NaN, and a count that 64 bits cannot hold, are null: unknown is no number."""
    values = {"gpu": "0", "power_watts": float("nan"), "ecc_corrected_total": 2**64 - 1, "temperature_celsius": 61.5}
    store = fill([Batch("m04", 7, (Sample("gpu", values),))])
    assert rows(store, "gpu") == [{"time": 7, "machine": "m04", "gpu": "0", "temperature_celsius": 61.5}]


@pytest.mark.parametrize(("first", "then", "kind"), [(7, 2.5, "double"), (7, "seven", "string"), (2.5, "x", "string")])
def test_unknown_columns_widen(fill: Fill, first: float, then: float | str, kind: str) -> None:
    """A column that no catalogue knows takes the type that holds all that was found in it."""
    store = fill([Batch("m05", at, (Sample("host", {"novel": value}),)) for at, value in ((1, first), (2, then))])
    assert str(store.read("host").schema.field("novel").type) == kind
    assert [str(row["novel"]).removesuffix(".0") for row in rows(store, "host")] == [str(first), str(then)]


def test_every_metric_has_a_type() -> None:
    """Seconds have fractions and nanoseconds need all 64 bits, so the kind alone does not set the type."""
    assert type_of("cuda", "synchronize_seconds_total") == "double"
    assert type_of("verdict", "since") == "int64"
    assert type_of("nccl", "operations_total") == "int64"
    assert type_of("host", "nothing_known") is None
