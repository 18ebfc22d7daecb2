"""How far each entity stands from its peers: in the metric's own unit, over what is usual and worth a word."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detector.config import Config
from detector.window import grown
from store.catalogue import METRICS

Array = NDArray[np.floating[Any]]
Members = NDArray[np.int64] | slice
"""Columns of one peer group; a slice where that is everybody, which spares copies."""
_CLIPPED_NORMAL = 1 / 0.92  # a normal variable clipped at two deviations has 0.92 of its variance
_DRIFT_CALLS = 40.0
FARTHEST = 99.0
"""Any deviation of a metric that never moves is this many bounds away."""
_NORMAL = 1.4826  # median absolute deviation -> standard deviation of a normal distribution


def middle(values: Array) -> Array:
    """Median along the last axis, NaN left out (NaN where nothing is known); [metric, entity] -> [metric]."""
    ordered = np.sort(values, axis=-1)  # NaN goes to the end
    count = (~np.isnan(values)).sum(-1)
    last = np.maximum(count - 1, 0)
    low = np.take_along_axis(ordered, (last // 2)[..., None], -1)[..., 0]
    high = np.take_along_axis(ordered, ((last + 1) // 2)[..., None], -1)[..., 0]
    result: Array = (low + high) / 2
    return result


@dataclass(frozen=True, slots=True)
class Bounds:
    """Per metric, what the catalogue has to say; [metric]."""

    floor: Array
    relative: Array
    unknown: NDArray[np.bool_]
    high: NDArray[np.bool_]
    low: NDArray[np.bool_]


def bounds_of(table: str, metrics: list[str], config: Config) -> Bounds:
    """Floors and directions; a metric that no catalogue knows gets the defaults and both directions."""
    rows = [METRICS.get(f"{table}.{metric}") for metric in metrics]
    return Bounds(
        np.array([row.floor if row else 0.0 for row in rows]),
        np.array([row.relative if row else config.unknown_share for row in rows]),
        np.array([row is None for row in rows], bool),
        np.array([row is None or row.bad in ("high", "both") for row in rows], bool),
        np.array([row is None or row.bad in ("low", "both") for row in rows], bool),
    )


@dataclass(slots=True)
class Norm:
    """What is usual for each entity, arrays [metric, entity], learned while it is not under suspicion."""

    offset: Array = field(default_factory=lambda: np.zeros((0, 0)))
    """Usual distance from the peers: roles and bad sensors differ by a constant, and that is no fault."""
    power: Array = field(default_factory=lambda: np.zeros((0, 0)))
    """Mean square of what is left."""
    level: Array = field(default_factory=lambda: np.zeros((0, 0)))
    swing: Array = field(default_factory=lambda: np.zeros((0, 0)))
    """Mean square distance of the reading from its own level: how much it moves anyway."""
    past: Array = field(default_factory=lambda: np.zeros((0, 0)))
    """What was left a few steps ago ..."""
    drift: Array = field(default_factory=lambda: np.zeros((0, 0)))
    """... and the mean square of how far that has gone since."""
    count: Array = field(default_factory=lambda: np.zeros((0, 0)))

    def fit(self, shape: tuple[int, ...]) -> None:
        """Make room for [metric, entity]."""
        for name in ("offset", "power", "level", "swing", "past", "drift", "count"):
            setattr(self, name, grown(getattr(self, name), shape, 0.0))

    def forget(self, entities: NDArray[np.int64]) -> None:
        """Begin anew for some entities, as when they change their task."""
        self.count[:, entities] = 0


@dataclass(frozen=True, slots=True)
class Distance:
    """One group of peers at one step; [metric, member]."""

    strength: Array
    """Signed distance in multiples of the least that counts; NaN where unknown or the norm is young."""
    residual: Array
    """Distance from where the peers say this member should be, in the metric's unit."""
    bound: Array
    center: Array
    """[metric, 1]: where the peers are, the usual offsets taken off."""


def compare(values: Array, members: Members, norm: Norm, bounds: Bounds, config: Config) -> Distance:
    """Distances of a peer group's members from its median: `values` is [metric, entity], denoised."""
    rows = slice(len(bounds.floor))
    mine = values[rows][:, members]
    count = norm.count[rows][:, members]
    expected = norm.offset[rows][:, members] * (count > 0)
    center = middle(mine - expected)[:, None]
    residual = mine - expected - center
    now = _NORMAL * middle(np.abs(residual))[:, None]
    own = np.sqrt(norm.power[rows][:, members])
    # A metric that jumps at times on some machine will do so on the others: the mean keeps what the median forgets.
    usual = np.sqrt((own**2).sum(1) / np.maximum((count > 0).sum(1), 1))[:, None]
    noise = np.fmax(np.fmax(own, now), usual)
    # A norm learned from few steps knows its own noise badly.
    noise = noise * (1 + config.warm_steps / 2 / np.maximum(count, 1))
    bound = np.fmax(config.sigmas * noise, _floors(np.abs(center[:, 0]), norm.swing[rows][:, members], bounds, config))
    with np.errstate(divide="ignore", invalid="ignore"):
        strength = np.clip(np.where(residual == 0, 0.0, residual / bound), -FARTHEST, FARTHEST)
    peers = (~np.isnan(mine)).sum(1) >= config.fewest_peers
    strength[~peers] = np.nan
    strength[count < config.warm_steps] = np.nan
    if bounds.unknown.any():
        strength[bounds.unknown & ~has_peers(norm, rows, members, config)] = np.nan
    return Distance(strength, residual, bound, center)


def has_peers(norm: Norm, rows: slice, members: Members, config: Config) -> NDArray[np.bool_]:
    """[metric]: whether the others foretell a member's reading; unknown until enough was seen.

    Where what is left after the peers wanders as far as the reading itself, and wanders slowly (noise does not), the
    entities have nothing to do with each other; where most metrics say so, none is believed.
    """
    count = norm.count[rows, members]
    seen = middle(count) >= config.peer_steps
    power, swing = middle(norm.power[rows, members]), middle(norm.swing[rows, members])
    tiny = np.finfo(np.float64).tiny
    with np.errstate(over="ignore"):
        explained = 1 - np.sqrt(power / np.maximum(swing, tiny))
        persists = 1 - middle(norm.drift[rows, members] / np.maximum(2 * norm.power[rows, members], tiny))
    moves = power > tiny
    alone: NDArray[np.bool_] = moves & (explained < config.explained_least) & (persists > config.persists_least)
    strangers = 2 * (alone & seen).sum() > (moves & seen).sum()
    judged: NDArray[np.bool_] = seen & ~alone & ~strangers
    return judged


def _floors(level: Array, swing: Array, bounds: Bounds, config: Config) -> Array:
    """[metric, 1]: the least difference worth a word; `level` [metric] is the size of the readings."""
    floor: Array = np.fmax(bounds.floor, bounds.relative * level)
    unknown = np.flatnonzero(bounds.unknown)
    floor[unknown] = np.fmax(floor[unknown], config.unknown_spread * np.sqrt(middle(swing[unknown])))
    return floor[:, None]


def unsettle(norm: Norm, values: Array, members: Members, bounds: Bounds, config: Config) -> None:
    """While a task is young, begin anew with every metric whose peers have all gone to a level not seen before.

    What was learned while the task loaded says nothing of how it runs; later, a common jump may be a fault's effect.
    """
    rows = slice(len(bounds.floor))
    steps = norm.count[rows, members]
    settled = 2 * (steps >= config.settle_steps).sum(-1) > steps.shape[-1]
    if settled.all():
        return
    count = middle(steps)
    young = (count >= config.warm_steps / 2) & (count < config.settle_steps)
    if not young.any():
        return
    level, sway = middle(norm.level[rows, members]), np.sqrt(middle(norm.swing[rows, members]))
    now = middle(values[rows][:, members])
    jump = np.abs(now - level) > np.fmax(config.sigmas * sway, np.fmax(bounds.floor, 0.5 * np.abs(level)))
    anew = np.flatnonzero(young & jump)
    if len(anew):
        spot = norm.count[anew]
        spot[:, members] = 0
        norm.count[anew] = spot


def learn(norm: Norm, values: Array, members: Members, distance: Distance, pace: Array, config: Config) -> None:
    """Move the norm towards what was just seen; `pace` [metric, member] is 1, or less under suspicion."""
    rows = slice(len(values))
    cell = (rows, members)
    mine = values[rows][:, members]
    count = norm.count[cell]
    known = ~np.isnan(mine) & ~np.isnan(distance.residual)
    rate = np.where(known, pace / (count + 1), 0.0)
    # Noise is what is usual, not what checkpoints and bursts do at times (continuity sees to those): values beyond two
    # standard deviations count as two. What never moved has no deviation to be held to.
    sigma = np.sqrt(norm.power[cell])
    far = np.where((sigma > 0) & (count >= config.warm_steps), 2 * sigma, np.inf)
    left = np.where(known, np.clip(distance.residual, -far, far), 0.0)
    norm.offset[cell] = np.where(count > 0, norm.offset[cell], 0.0) + rate * left
    square = np.where(count > 1, left, 0.0) ** 2 * np.where(np.isinf(far), 1.0, _CLIPPED_NORMAL)
    norm.power[cell] = np.where(count > 0, norm.power[cell] * (1 - rate) + rate * square, 0.0)
    level = np.where(count > 0, norm.level[cell], 0.0)
    sway = np.sqrt(norm.swing[cell])
    most = np.where((sway > 0) & (count >= config.warm_steps), 2 * sway, np.inf)
    away = np.where(known, np.clip(mine - level, -most, most), 0.0)
    norm.level[cell] = level + rate * away
    norm.swing[cell] = np.where(count > 0, norm.swing[cell] * (1 - rate) + rate * away**2, 0.0)
    norm.count[cell] = count + known


def learn_drift(norm: Norm, members: Members, distance: Distance, depth: int) -> None:
    """Note how far each residual has gone since the last call: call it every `depth` steps, the smoothing's length."""
    cell = (slice(len(distance.bound)), members)
    far = np.where(distance.bound > 0, 2 * distance.bound, np.inf)
    left = np.clip(np.nan_to_num(distance.residual), -far, far)
    rate = 1 / (np.minimum(norm.count[cell] / depth, _DRIFT_CALLS) + 1)
    norm.drift[cell] += rate * ((left - norm.past[cell]) ** 2 - norm.drift[cell])
    norm.past[cell] = left


def cap_memory(norm: Norm, steps: int) -> None:
    """Keep the memory exponential: a count that stops growing makes the mean forget."""
    np.minimum(norm.count, steps, out=norm.count)
