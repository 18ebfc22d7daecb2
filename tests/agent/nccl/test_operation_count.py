"""Counts begin with a communicator's birth, or say that they do not."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent.nccl.operation_count import CountOrigin


def test_birth_needs_nothing() -> None:
    """A communicator with a birth that was seen counts from zero at once."""
    baseline = CountOrigin()
    baseline.settle(born=True, operations=7, own=None)
    assert (baseline.base, baseline.origin) == (0, "birth")


def test_the_librarys_own_count_fills_in_what_was_missed() -> None:
    """Three readings that agree with the first, with operations between, give the base; readings at rest do not."""
    baseline = CountOrigin()
    for operations in (10, 10, 18, 18, 18, 21):
        baseline.settle(born=False, operations=operations, own=265 + operations)
        assert baseline.origin is None
    baseline.settle(born=False, operations=25, own=290)
    assert (baseline.base, baseline.origin) == (265, "memory")


def test_a_count_of_another_kind_is_not_believed() -> None:
    """A library with a count that does not move in step with ours is given up, and the row says so."""
    baseline = CountOrigin()
    for reading in range(11):
        assert baseline.origin is None
        baseline.settle(born=False, operations=10 * reading, own=90 + 3 * reading)
    assert (baseline.base, baseline.origin) == (0, "attach")


@given(st.lists(st.tuples(st.integers(0, 9), st.none() | st.integers(0, 40)), max_size=30))
def test_a_base_is_never_negative(readings: list[tuple[int, int | None]]) -> None:
    """Whatever is read, a settled base is at least nought and stays what it was."""
    baseline, operations, settled = CountOrigin(), 0, None
    for more, own in readings:
        operations += more
        baseline.settle(born=False, operations=operations, own=own)
        assert baseline.base >= 0
        if settled is not None:
            assert (baseline.base, baseline.origin) == settled
        if baseline.origin:
            settled = baseline.base, baseline.origin
