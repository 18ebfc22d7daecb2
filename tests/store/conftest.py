"""Stores of every kind behind one way to fill them, and rows as plain dictionaries."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from store.contract import LATEST, Store
from store.embedded import Embedded
from store.export import export
from store.recording import Recording
from store.sample import Batch

Fill = Callable[[list[Batch]], Store]


@pytest.fixture(params=["embedded", "recording"])
def fill(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Fill]:
    """A function that gives back a fresh store, of each kind in turn, which holds these batches."""
    opened: list[Store] = []
    number = itertools.count()

    def make(batches: list[Batch]) -> Store:
        place = tmp_path / f"{next(number)}"
        store: Store = Embedded(place.with_suffix(".db"))
        opened.append(store)
        for batch in batches:
            store.write([batch])
        if request.param == "recording":
            export(store, place, (0, LATEST))
            store = Recording(place)
            opened.append(store)
        return store

    yield make
    for store in opened:
        store.close()


def rows(store: Store, table: str, after: int = 0, until: int = LATEST) -> list[dict[str, object]]:
    """Rows of a table without what is null."""
    found = store.read(table, after, until).to_pylist()
    return [{name: value for name, value in row.items() if value is not None} for row in found]
