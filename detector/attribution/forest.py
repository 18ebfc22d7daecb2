"""Forest: decision trees as arrays, so that judging needs numpy alone and thresholds can follow what drifts.

After Holmes (NSDI'25): a random forest tells abnormal communication operators from normal ones; instead of fitting it
again, the thresholds of features with a distribution that has moved are moved along.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detector.stats.arrays import Floats, Ints

SHIPPED = Path(__file__).parent / "operators.json"
_LEAF = -1
_MOVED = 0.5  # a feature has drifted when its median moved by this share of its spread, or the spread by this factor


class ForestError(ValueError):
    """The model cannot be read; the message names the file and what is wrong."""


@dataclass(frozen=True, slots=True)
class Forest:
    """A fitted model; arrays are [tree, node], padded."""

    feature: Ints
    """Which feature a node asks for; -1: a leaf."""
    threshold: Floats
    left: Ints
    right: Ints
    share: Floats
    """Of the training samples that reached a node, those that were abnormal."""
    middle: Floats
    """[feature]: median among healthy training samples ..."""
    spread: Floats
    """... and distance of their quartiles."""
    origin: dict[str, Any]
    """Version, how it was fitted and how well."""

    def probability(self, samples: NDArray[np.floating[Any]]) -> Floats:
        """[sample]: the mean of the trees' shares, for samples [sample, feature]."""
        total, flat = np.zeros(len(samples)), np.ascontiguousarray(samples, np.float64).reshape(-1)
        row = np.arange(len(samples)) * samples.shape[1]
        for tree in range(len(self.feature)):
            leaf, asked, threshold = (
                self.feature[tree] == _LEAF,
                np.maximum(self.feature[tree], 0),
                self.threshold[tree],
            )
            # A leaf is its own child: all samples take as many steps, whether or not they have arrived.
            own = np.arange(len(leaf))
            children = np.stack([np.where(leaf, own, side[tree]) for side in (self.right, self.left)], 1).reshape(-1)
            node, level = np.zeros(len(samples), np.int64), np.zeros(1, np.int64)
            while not leaf[level].all():
                node = children[2 * node + (flat[row + asked[node]] <= threshold[node])]
                level = np.unique(children[np.concatenate([2 * level, 2 * level + 1])])
            total += self.share[tree, node]
        return total / len(self.feature)

    def tuned(self, middle: Floats, spread: Floats) -> Forest:
        """The same trees with the thresholds of features that have drifted moved along.

        `middle` and `spread` ([feature]) are median and quartile distance among healthy samples now.
        """
        usable = (self.spread > 0) & (spread > 0)
        ratio = np.where(usable, spread / np.where(usable, self.spread, 1.0), 1.0)
        shift = np.abs(middle - self.middle) > _MOVED * self.spread
        moved = usable & (shift | (ratio > 1 + _MOVED) | (ratio < 1 / (1 + _MOVED)))
        at = np.maximum(self.feature, 0)
        fresh = middle[at] + (self.threshold - self.middle[at]) * ratio[at]
        return replace(self, threshold=np.where(moved[at] & (self.feature != _LEAF), fresh, self.threshold))

    def save(self, path: Path) -> None:
        """Write it as text, the same for the same model."""
        arrays = {name: getattr(self, name) for name in ("feature", "left", "right")}
        numbers = {name: getattr(self, name).round(9) for name in ("threshold", "share", "middle", "spread")}
        stored = {"origin": self.origin} | {name: array.tolist() for name, array in (arrays | numbers).items()}
        path.write_text(json.dumps(stored, separators=(",", ":")) + "\n")


def load(path: Path = SHIPPED) -> Forest:
    """Read a model. Raises ForestError."""
    try:
        stored = json.loads(path.read_text())
        ints = {name: np.array(stored[name], np.int64) for name in ("feature", "left", "right")}
        floats = {name: np.array(stored[name], np.float64) for name in ("threshold", "share", "middle", "spread")}
        arrays: dict[str, Any] = ints | floats
        return Forest(**arrays, origin=stored["origin"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ForestError(f"{path} holds no model of operators: {error}") from None
