"""Trains Minder's model offline: nets on healthy windows, and the order of metrics by a decision tree.

Minder, NSDI'25, sections 4.2 and 4.3. The paper's LSTM variational autoencoders are replaced by scikit-learn's
perceptron with one narrow layer, or by principal components.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from detector.engine.pipeline import walk
from detector.evaluation.labels import Labels, read_labels
from detector.methods.baselines.autoencoder import Autoencoder, components
from detector.methods.baselines.frames import Frame, Frames
from detector.methods.baselines.minder import PRIORITY
from detector.methods.baselines.minder_model import HIDDEN, WINDOW, MinderModel, ModelError
from detector.methods.baselines.samples import Samples, empty
from detector.stats.arrays import Bools, Floats
from detector.topology.tasks import Tasks
from store.recording import Recording

MOST = 7
"""Metrics in a model, as many as the paper uses."""
_PER_RECORDING, _IN_ALL = 4000, 12_000  # healthy windows to learn from
_DEPTH = 6
_LEAF, _LEAF_SHARE = 20, 0.05
"""A leaf has at least so many windows, and this share of all: a tree must not learn single recordings by heart."""
DENOISERS = ("perceptron", "components")
PRIORITIES = ("tree", "paper")
CANDIDATES = (
    *PRIORITY,
    *("rdma.ecn_marked_packets_total", "rdma.cnp_sent_total", "rdma.transmit_bytes_total"),
    *("host.memory_utilization_ratio", "host.disk_utilization_ratio", "host.network_transmit_bytes_total"),
    *("gpu.memory_used_bytes", "gpu.temperature_celsius", "gpu.sm_clock_hertz", "gpu.sm_active_ratio"),
    *("gpu.fp32_active_ratio", "gpu.dram_active_ratio", "gpu.pcie_transmit_bytes_total"),
)
"""What of the paper's 21 metrics the agent reads; where a set has none of them, all that it has."""


@dataclass(slots=True)
class Learned:
    """What one recording contributes."""

    metrics: tuple[str, ...]
    windows: Floats
    """[metric, window, sample]: of machines in tasks without a fault."""
    highest: Floats
    """[frame, metric]: the largest z-score of any machine."""
    faulty: Bools
    """[frame]: whether a fault was there."""


def train(
    recordings: Sequence[Path],
    denoiser: str = "perceptron",
    priority: str = "tree",
    seed: int = 0,
    done: Callable[[int], object] = lambda count: None,
) -> MinderModel:
    """A model from recordings; those with labels.json also say what is faulty. Raises ModelError and StoreError.

    `priority` is `tree`, or `paper` for the paper's metrics in its order. `done` is called with the
    number of recordings read so far.
    """
    if denoiser not in DENOISERS:
        raise ModelError(f"no denoiser is called {denoiser}; there are {', '.join(DENOISERS)}")
    if priority not in PRIORITIES:
        raise ModelError(f"no priority is called {priority}; there are {', '.join(PRIORITIES)}")
    chance, found = np.random.default_rng(seed), []
    for count, folder in enumerate(recordings, 1):
        found += _learn(folder, chance)
        done(count)
    known = {key for one in found for key in one.metrics}
    candidates = tuple(key for key in CANDIDATES if key in known) or tuple(sorted(known))
    if not candidates:
        raise ModelError("these recordings have no task of four machines that is healthy for a while: nothing to learn")
    order, why = _order(found, candidates) if priority == "tree" else (candidates, "the paper's")
    chosen = order[:MOST]
    windows = np.concatenate([_aligned(one, chosen) for one in found], axis=1)
    windows = windows[:, chance.permutation(windows.shape[1])[:_IN_ALL]]
    each = _fitted(windows, HIDDEN, denoiser, seed)
    beside = windows.transpose(1, 0, 2).reshape(1, windows.shape[1], -1)
    joint = _fitted(beside, HIDDEN * len(chosen), denoiser, seed)
    error = float(((each.denoised(windows) - windows) ** 2).mean())
    origin = {"recordings": len(recordings), "windows": int(windows.shape[1]), "denoiser": denoiser, "order": why}
    return MinderModel(chosen, each, joint, origin | {"mean_squared_error": round(error, 6)})


def _learn(folder: Path, chance: np.random.Generator) -> list[Learned]:
    """What each task of a recording contributes; every eighth step gives windows."""
    labels = read_labels(folder) if (folder / "labels.json").is_file() else Labels(0, ())
    samples: dict[str, Samples] = {}
    parts: dict[str, list[tuple[Floats, Floats, bool]]] = {}
    for now, frame in _frames(folder):
        mine = samples.get(frame.task)
        if mine is None or (mine.machines, mine.metrics) != (frame.machines, frame.metrics):
            mine = samples[frame.task] = empty(frame.machines, frame.metrics, WINDOW)
            parts[frame.task] = []
        mine.add(frame.values)
        if mine.steps >= WINDOW and mine.steps % WINDOW == 0:
            faulty = any(f.machine in frame.machines and f.start <= now <= f.end for f in labels.faults)
            parts[frame.task].append((mine.ring.mean(0), mine.ring.transpose(1, 2, 0), faulty))
    return [_contribution(samples[task], found, chance) for task, found in parts.items() if found]


def _frames(folder: Path) -> Iterable[tuple[int, Frame]]:
    frames, tasks = Frames(), Tasks()
    for now, rows in walk(Recording(folder)):
        for new in rows.values():
            tasks.feed(new)
        tasks.turn(now)
        frames.feed(rows)
        for frame in frames.due(now, tasks):
            yield now, frame


def _contribution(samples: Samples, found: list[tuple[Floats, Floats, bool]], chance: np.random.Generator) -> Learned:
    """Windows are scaled by the bounds of the whole recording, which training may know."""
    faulty = np.array([one[2] for one in found])
    means = np.stack([one[0] for one in found])
    spread = means.std(2, keepdims=True)
    highest = np.divide(
        np.abs(means - means.mean(2, keepdims=True)), spread, out=np.zeros(means.shape), where=spread > 0
    )
    healthy = [one[1] for one in found if not one[2]]
    shape = (len(samples.metrics), 0, WINDOW)
    windows = np.concatenate(healthy, axis=1) if healthy else np.zeros(shape)
    windows = windows[:, chance.permutation(windows.shape[1])[:_PER_RECORDING]]
    scale = np.where(samples.most > samples.least, samples.most - samples.least, 1.0)
    return Learned(samples.metrics, (windows - samples.least[:, :, None]) / scale[:, :, None], highest.max(2), faulty)


def _aligned(one: Learned, metrics: tuple[str, ...]) -> Floats:
    """[metric, window, sample] in this order; what the recording does not have is 0."""
    out = np.zeros((len(metrics), *one.windows.shape[1:]))
    for at, key in enumerate(metrics):
        if key in one.metrics:
            out[at] = one.windows[one.metrics.index(key)]
    return out


def _order(found: Sequence[Learned], candidates: tuple[str, ...]) -> tuple[tuple[str, ...], str]:
    """The candidates, those nearest the tree's root first, and in words where the order comes from."""
    from sklearn.tree import DecisionTreeClassifier

    faulty = np.concatenate([one.faulty for one in found])
    if not faulty.any() or faulty.all():
        return candidates, "the paper's: no recording has both healthy and faulty windows"
    highest = np.zeros((len(faulty), len(candidates)))
    for at, key in enumerate(candidates):
        column = [
            one.highest[:, one.metrics.index(key)] if key in one.metrics else np.zeros(len(one.faulty)) for one in found
        ]
        highest[:, at] = np.concatenate(column)
    leaf = max(_LEAF, round(_LEAF_SHARE * len(faulty)))
    tree = DecisionTreeClassifier(max_depth=_DEPTH, min_samples_leaf=leaf, class_weight="balanced", random_state=0)
    tree.fit(highest, faulty)
    depth = _first_depths(tree.tree_.feature, tree.tree_.children_left, tree.tree_.children_right, len(candidates))
    weight = tree.feature_importances_
    ranked = sorted(range(len(candidates)), key=lambda at: (depth[at], -weight[at], at))
    return tuple(candidates[at] for at in ranked), f"a decision tree over {len(faulty)} labelled windows"


def _first_depths(feature: Floats, left: Floats, right: Floats, count: int) -> list[int]:
    """[candidate]: the depth at which a tree first asks for it; `_DEPTH` + 1 where it never does."""
    depth, level, nodes = [_DEPTH + 1] * count, 0, [0]
    while nodes:
        for node in nodes:
            if feature[node] >= 0:
                depth[int(feature[node])] = min(depth[int(feature[node])], level)
        nodes = [int(side[node]) for node in nodes if feature[node] >= 0 for side in (left, right)]
        level += 1
    return depth


def _fitted(windows: Floats, hidden: int, denoiser: str, seed: int) -> Autoencoder:
    """One net for each of windows [net, sample, input]."""
    if denoiser == "components":
        return components(windows, hidden)
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPRegressor

    nets = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # stopping early is part of the denoising
        for mine in windows:
            net = MLPRegressor(hidden_layer_sizes=(hidden,), activation="tanh", max_iter=60, random_state=seed)
            nets.append(net.fit(mine, mine))
    weights = [np.stack([net.coefs_[layer] for net in nets]) for layer in (0, 1)]
    biases = [np.stack([net.intercepts_[layer] for net in nets]) for layer in (0, 1)]
    return Autoencoder(weights[0], biases[0], weights[1], biases[1], True)
