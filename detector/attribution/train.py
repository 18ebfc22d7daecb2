"""Training: fits the forest of the operators method with scikit-learn; the only door to it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn import __version__ as library
from sklearn.ensemble import RandomForestClassifier

from detector.attribution.forest import Forest

VERSION = 1
TREES, DEPTH, LEAST = 24, 7, 20


def fit(
    samples: NDArray[np.floating[Any]], abnormal: NDArray[np.bool_], healthy: NDArray[np.bool_], seed: int
) -> Forest:
    """A forest for samples [sample, feature] with labels [sample]; `healthy` marks those of undisturbed iterations.

    Equal arguments and an equal version of scikit-learn give an equal forest.
    """
    model = RandomForestClassifier(
        TREES, max_depth=DEPTH, min_samples_leaf=LEAST, class_weight="balanced_subsample", random_state=seed
    )
    model.fit(samples, abnormal)
    trees = [tree.tree_ for tree in model.estimators_]
    size = max(tree.node_count for tree in trees)

    def padded(name: str, fill: float, kind: type) -> NDArray[Any]:
        out = np.full((len(trees), size), fill, kind)
        for at, tree in enumerate(trees):
            out[at, : tree.node_count] = getattr(tree, name)
        return out

    share = np.zeros((len(trees), size))
    for at, tree in enumerate(trees):
        votes = tree.value[:, 0, :]
        share[at, : tree.node_count] = votes[:, 1] / votes.sum(1)
    feature = padded("feature", -1, np.int64)
    low, middle, high = np.percentile(samples[healthy], [25, 50, 75], axis=0)
    origin = {"version": VERSION, "seed": seed, "scikit-learn": library, "samples": len(samples), "trees": TREES}
    return Forest(
        np.where(feature < 0, -1, feature),
        padded("threshold", 0.0, np.float64),
        padded("children_left", 0, np.int64),
        padded("children_right", 0, np.int64),
        share,
        middle,
        high - low,
        origin,
    )
