"""MessagePack answers: whatever the layout of their rows and the size of the pieces, what comes out is what went in."""

from __future__ import annotations

import itertools
from contextlib import suppress
from typing import Any

import msgpack
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from store.influx.msgpack_response import MessagePackReader
from store.influx.response import rows_of, series_of
from store.schema.contract import StoreError

CELLS: dict[str, st.SearchStrategy[Any]] = {
    "double": st.floats(allow_nan=False),
    "small": st.integers(0, 127),
    "whole": st.integers(-(2**63), 2**64 - 1),
    "large": st.integers(2**40, 2**62),
    "nothing": st.none(),
    "some": st.none() | st.floats(allow_nan=False),
    "text": st.text(max_size=40),
    "switch": st.booleans(),
}


@st.composite
def series(draw: st.DrawFn) -> dict[str, Any]:
    """A series with rows of mostly the same layout."""
    kinds = draw(st.lists(st.sampled_from(sorted(CELLS)), min_size=1, max_size=20))
    usual = [draw(CELLS[kind]) for kind in kinds]
    rows = [[1795169772 * 10**9 + n, *usual] for n in range(draw(st.integers(0, 120) | st.just(700)))]
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, 119) | st.integers(0, 699))
        if at < len(rows):
            rows[at] = [rows[at][0], *(draw(CELLS[kind]) for kind in kinds)]
    names = ["time", *(f"c{n}" for n in range(len(kinds)))]
    assume(len(rows) * len(kinds) < 2500)
    return {"name": "gpu", "tags": {"machine": draw(st.text(max_size=9))}, "columns": names, "values": rows}


def answer(found: list[dict[str, Any]], size: int) -> list[bytes]:
    """Series as a server streams them, cut into pieces of this size."""
    objects = [{"results": [{"statement_id": 0, "series": [one], "partial": True}]} for one in found]
    whole = b"".join(map(msgpack.packb, objects))
    return [whole[at : at + size] for at in range(0, len(whole), size)]


@given(found=st.lists(series(), max_size=3), size=st.integers(1, 5000))
def test_what_goes_in_comes_out(found: list[dict[str, Any]], size: int) -> None:
    """Names, tags and every value, in order, whether they came as columns or as rows."""
    out = list(series_of("application/x-msgpack", answer(found, size)))
    assert [(one["name"], one["tags"], one["columns"]) for one in out] == [
        (one["name"], one["tags"], one["columns"]) for one in found
    ]
    for one, wanted in zip(out, found, strict=True):
        assert values(one) == wanted["values"]


def values(one: dict[str, Any]) -> list[list[Any]]:
    """All values of a series, a missing column as None."""
    rows: list[list[Any]] = []
    for block in one["values"]:
        columns = [itertools.repeat(None, block.count) if c is None else c.tolist() for c in block.columns]
        rows += block.rows or [list(row) for row in zip(*columns, strict=True)]
    return rows


def test_rows_alike_become_columns() -> None:
    """A run of numbers of fixed width is taken as arrays, and what differs in its midst is not."""
    rows = [[10**18 + n, 1, n / 7, None, 2**40 + n] for n in range(5000)]
    rows[300] = [10**18 + 300, 1, None, 2.5, 7]
    (one,) = series_of("msgpack", answer([{"name": "gpu", "tags": {}, "columns": list("tabcd"), "values": rows}], 777))
    shapes = [(block.count, bool(block.columns)) for block in one["values"]]
    assert shapes[0] == (300, True)
    assert (sum(count for count, _ in shapes), sum(count for count, arrays in shapes if not arrays) < 300) == (
        5000,
        True,
    )
    first = one["values"][0].columns
    assert first[2].dtype.kind == "f"
    assert first[3] is None
    assert values(one) == rows


@pytest.mark.parametrize("kind", ["application/x-msgpack", "application/json"])
def test_errors_are_said(kind: str) -> None:
    """What the server says it cannot do is raised in its own words, wherever in the answer it stands."""
    said = {"results": [{"statement_id": 0, "error": "database not found: x"}]}
    body = (
        msgpack.packb(said)
        if "msgpack" in kind
        else b'{"results":[{"statement_id":0,"error":"database not found: x"}]}'
    )
    with pytest.raises(
        StoreError, match="database not found: x; the first agent, detector or `peerwatch copy` creates it"
    ):
        list(series_of(kind, [body]))


def test_json_is_understood() -> None:
    """Where a server knows no MessagePack, its JSON gives the same."""
    series = b'{"name":"gpu","tags":{"machine":"m1"},"columns":["time","a"],"values":[[5,1.5],[6,null]]}'
    body = b'{"results":[{"series":[%b]}]}\n' % series
    out = [one for at in (1, 30, 500) for one in series_of("application/json", [body[:at], body[at:], body])]
    assert len(out) == 6
    assert all(rows_of(one) == [[5, 1.5], [6, None]] for one in out)


@pytest.mark.parametrize("body", [b"<html>", b"\xc1", b"\x81\xa7results\x91\x81\xa6series\x95\x82"])
def test_what_is_no_answer(body: bytes) -> None:
    """A page, noise, or an answer that breaks off is one line, never an endless wait or half a result."""
    for kind in ("application/x-msgpack", "application/json"):
        with pytest.raises(StoreError) as caught:
            list(series_of(kind, [body]))
        assert "\n" not in str(caught.value)


@given(body=st.binary(max_size=300))
def test_noise_ends(body: bytes) -> None:
    """Any bytes either are an answer or raise StoreError."""
    for kind in ("msgpack", "json"):
        with suppress(StoreError):
            list(series_of(kind, [body]))


@given(found=st.lists(series(), min_size=1, max_size=2), cut=st.floats(0.01, 0.99))
def test_an_answer_that_breaks_off_is_an_error(found: list[dict[str, Any]], cut: float) -> None:
    """A connection that ends within an answer never passes for a shorter answer."""
    (whole,) = answer(found[:1], 1 << 30)
    with pytest.raises(StoreError, match=r"ends before its end|no InfluxQL answer"):
        list(MessagePackReader([whole[: max(1, int(len(whole) * cut))]]).series())
