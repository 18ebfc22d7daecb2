"""Where reconstruction from peers is expected to fail: what lasts counts more than what passes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from detector.engine.zoom_model import FEATURES, ZoomModel, errors_ahead, fit
from detector.methods.peers.cusum import ActiveCells


def panel(at: int, deviations: dict[int, tuple[float, ...]], entities: int = 5, evidence: float = 0.2) -> Any:
    """A step of a table: some entities, each with the deviations of its readings."""
    entity = np.array([one for one, values in deviations.items() for _ in values], np.int64)
    deviation = np.array([value for values in deviations.values() for value in values])
    metric = np.concatenate([*(np.arange(len(values)) for values in deviations.values()), []]).astype(np.int64)
    cells = ActiveCells(np.zeros_like(entity), metric, entity, deviation, np.ones(len(entity)))
    return SimpleNamespace(
        cells=cells, evidence=np.full(len(entity), evidence), judged_at=at, group=np.zeros(entities, np.int64)
    )


def test_what_lasts_is_expected_to_go_on() -> None:
    """Of two machines with one deviation now the one that has had it for some steps has the larger error expected."""
    model = ZoomModel()
    for at in range(30):
        model.expected({"gpu": panel(at, {1: (4.0,)})})
    entities, errors = model.expected({"gpu": panel(30, {1: (4.0,), 3: (4.0,)})})["gpu"]
    assert entities.tolist() == [1, 3]
    assert errors[0] > errors[1] + 0.5
    again = model.expected({"gpu": panel(30, {1: (4.0,), 3: (4.0,)})})["gpu"][1]  # the same step teaches nothing
    assert again == pytest.approx(errors)


def test_entities_that_leave_take_their_past_along() -> None:
    """After an eviction numbers mean other entities: nothing is remembered of those before; new ones have no past."""
    model = ZoomModel()
    for at in range(30):
        model.expected({"gpu": panel(at, {4: (5.0,)})})
    lasting = FEATURES.index("lasting")
    assert model.features("gpu", panel(30, {4: (5.0,)}))[1][0, lasting] > 4
    assert model.features("gpu", panel(31, {2: (5.0,), 6: (1.0,)}, entities=7))[1][1, lasting] == pytest.approx(0.1)
    assert model.features("gpu", panel(32, {2: (5.0,)}, entities=3))[1][0, lasting] == pytest.approx(0.5)


def test_a_table_without_deviations_expects_nothing() -> None:
    """No cell, no entity; an unknown deviation counts as none."""
    model = ZoomModel()
    assert len(model.expected({"host": panel(0, {})})["host"][0]) == 0
    assert model.features("host", panel(1, {2: (np.nan,)}))[1][0, FEATURES.index("deviation")] == 0.0


def test_the_fit_recovers_what_made_the_errors() -> None:
    """Ridge regression finds the weights of a made-up law; errors ahead are means of the next steps."""
    chance = np.random.default_rng(17)
    samples, law = chance.normal(size=(4000, 6)), np.array([0.3, 0.7, -0.2, 0.4, 0.0, 0.1])
    assert fit(samples, samples @ law + chance.normal(0, 0.05, 4000)) == pytest.approx(law, abs=0.01)
    assert errors_ahead(np.array([[1.0], [2.0], [6.0], [4.0]]), 2)[:, 0].tolist() == [4.0, 5.0, 4.0, 0.0]
