"""The model of operators: its trees, thresholds that follow drift, and its file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from detector.attribution.features import FEATURES
from detector.attribution.forest import Forest, ForestError, load
from detector.attribution.operator_log import irregular


def test_irregular_is_longer_than_the_usual() -> None:
    """An iteration is irregular when it is more than delta times as long as the usual ones."""
    assert irregular(np.array([1.0, 1.01, 1.06, 0.99, 1.3])).tolist() == [False, False, True, False, True]


def tiny(threshold: float) -> Forest:
    """One tree that asks for the first feature."""
    row = np.array([[0, -1, -1]])
    return Forest(
        feature=row,
        threshold=np.array([[threshold, 0.0, 0.0]]),
        left=np.array([[1, 0, 0]]),
        right=np.array([[2, 0, 0]]),
        share=np.array([[0.3, 0.1, 0.9]]),
        middle=np.array([5.0]),
        spread=np.array([2.0]),
        origin={"version": 3},
    )


def test_a_forest_answers_with_its_leaves() -> None:
    """A sample at the threshold goes to the left leaf, one above it to the right."""
    assert tiny(7.0).probability(np.array([[7.0], [7.1]])).tolist() == [0.1, 0.9]


def test_a_threshold_moves_with_its_feature() -> None:
    """A feature that has moved takes its threshold along, in the same place of its spread; a still one does not."""
    forest = tiny(7.0)
    assert forest.tuned(np.array([11.0]), np.array([4.0])).threshold[0].tolist() == [15.0, 0.0, 0.0]
    assert forest.tuned(np.array([5.2]), np.array([2.1])).threshold[0].tolist() == [7.0, 0.0, 0.0]


def test_the_model_can_be_saved(tmp_path: Path) -> None:
    """A saved model reads back alike; a file without a model is refused in one line."""
    place = tmp_path / "model.json"
    tiny(6.0).save(place)
    assert load(place).probability(np.array([[6.5]])).tolist() == [0.9]
    place.write_text('{"feature": [[0]]}')
    with pytest.raises(ForestError, match="holds no model of operators"):
        load(place)


def test_the_shipped_model_says_where_it_comes_from() -> None:
    """The shipped model has its version, seed, number of samples and all features."""
    forest = load()
    assert {"version", "seed", "samples", "scikit-learn"} <= set(forest.origin)
    assert len(forest.middle) == len(FEATURES) > forest.feature.max()
