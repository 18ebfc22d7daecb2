"""How far each entity stands from its peers: in the metric's own unit, over what is usual and worth a word."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from detector.config import Config
from detector.model.metrics import Bounds
from detector.stats.arrays import Array, Ints, grown
from detector.stats.grouped import Groups

_CLIPPED_NORMAL = 1 / 0.92  # a normal variable clipped at two deviations has 0.92 of its variance
_DRIFT_CALLS = 40.0
FARTHEST = 99.0
"""Any deviation of a metric that never moves is this many bounds away."""
_NORMAL = 1.4826  # median absolute deviation -> standard deviation of a normal distribution
_TINY = float(np.finfo(np.float32).tiny)


def _zeros() -> NDArray[np.float64]:
    return np.zeros((0, 0))


def _singles() -> NDArray[np.float32]:
    return np.zeros((0, 0), np.float32)


@dataclass(slots=True)
class Norm:
    """What is usual for each entity, arrays [metric, entity], learned while it is not under suspicion."""

    offset: NDArray[np.float32] = field(default_factory=_singles)
    """Usual distance from the peers: roles and bad sensors differ by a constant, and that is no fault."""
    power: Array = field(default_factory=_zeros)
    """Mean square of what is left."""
    level: Array = field(default_factory=_zeros)
    swing: Array = field(default_factory=_zeros)
    """Mean square distance of the reading from its own level: how much it moves anyway."""
    past: Array = field(default_factory=_zeros)
    """What was left a few steps ago ..."""
    drift: Array = field(default_factory=_zeros)
    """... and the mean square of how far that has gone since."""
    count: NDArray[np.float32] = field(default_factory=_singles)
    """Steps that this was learned from."""
    reach: NDArray[np.float32] = field(default_factory=_singles)
    """The least distance that counts ..."""
    bound: NDArray[np.float32] = field(default_factory=_singles)
    """... and the same where it is judged, NaN where the norm is young or the peers are few or strangers."""

    def fit(self, shape: tuple[int, ...]) -> None:
        """Make room for [metric, entity]."""
        for name in ("offset", "power", "level", "swing", "past", "drift", "count", "reach"):
            setattr(self, name, grown(getattr(self, name), shape, 0.0))
        self.bound = grown(self.bound, shape, np.nan)

    def anew(self, part: Part, cells: NDArray[np.bool_]) -> None:
        """Begin anew with some cells [metric of the part, entity]."""
        for array in (self.count, self.offset, self.power, self.level, self.swing):
            array[part.rows, : cells.shape[1]][cells] = 0

    def forget(self, entities: Ints) -> None:
        """Begin anew for some entities, as when they change their task."""
        for array in (self.count, self.offset, self.power, self.level, self.swing):
            array[:, entities] = 0
        self.bound[:, entities] = np.nan


@dataclass(frozen=True, slots=True)
class Distance:
    """All entities at one step; [metric, entity]."""

    strength: NDArray[np.float32]
    """Signed distance in multiples of the least that counts; NaN where unknown or not judged."""
    residual: NDArray[np.float32]
    """Distance from where the peers say this one should be, in the metric's unit."""
    center: Array
    """[metric, group]: where the peers are, the usual offsets taken off."""


def compare(values: NDArray[np.float32], groups: Groups, norm: Norm) -> Distance:
    """Distance of each entity from the median of its group: `values` is [metric, entity], denoised."""
    cell = tuple(slice(size) for size in values.shape)
    residual = values - norm.offset[cell]
    center = groups.middle(residual)
    residual -= groups.each(center)
    with np.errstate(over="ignore", invalid="ignore"):
        strength = residual / norm.bound[cell]
    np.clip(strength, -FARTHEST, FARTHEST, out=strength)
    return Distance(strength, residual, center)


@dataclass(frozen=True, slots=True)
class Part:
    """The metrics whose norm is looked after at this step: each has its turn, as norms change slowly."""

    rows: slice
    weight: int
    """Steps from one turn to the next."""


def unsettle(norm: Norm, values: Array, groups: Groups, part: Part, bounds: Bounds, config: Config) -> None:
    """While a task is young, begin anew with every metric whose peers have all gone to a level not seen before.

    What was learned while the task loaded says nothing of how it runs; later, a common jump may be a fault's effect.
    """
    cell = _cells(part, values)
    count = groups.middle(norm.count[cell])
    young = (count >= config.warmup_steps / 2) & (count < config.startup_steps)
    if not young.any():
        return
    level, sway = groups.middle(norm.level[cell]), np.sqrt(groups.middle(norm.swing[cell]))
    now, floor = groups.middle(values[part.rows]), bounds.floor[part.rows, None]
    with np.errstate(invalid="ignore"):
        jump = np.abs(now - level) > np.fmax(config.deviation_sigmas * sway, np.fmax(floor, 0.5 * np.abs(level)))
    anew = np.broadcast_to(groups.each(young & jump), norm.count[cell].shape)
    if anew.any():
        norm.anew(part, anew)


def mend(norm: Norm, values: Array, distance: Distance, groups: Groups, part: Part, config: Config) -> None:
    """While it is young, begin anew with the norm of whoever seems far off by it and reads as its peers do.

    What is usual was then learned from a burst: it was the norm that was odd.
    """
    strange = (np.abs(distance.strength[part.rows]) > 1) & (norm.count[_cells(part, values)] < config.startup_steps)
    rows = np.flatnonzero(strange.any(1))
    if not len(rows):
        return
    mine, reach = values[part.rows][rows], norm.reach[_cells(part, values)][rows]
    alike = np.abs(mine - groups.each(groups.middle(mine))) < reach / 2
    alike &= np.abs(norm.offset[_cells(part, values)][rows]) > reach / 2
    strange[rows] &= alike
    norm.anew(part, strange)


def _cells(part: Part, values: Array) -> tuple[slice, slice]:
    return part.rows, slice(values.shape[1])


def learn(
    norm: Norm, values: Array, distance: Distance, part: Part, suspect: NDArray[np.bool_], config: Config
) -> None:
    """Move the norm towards what was just seen; `suspect` [metric, entity] marks what is to move it little."""
    cell = _cells(part, values)
    mine, left, count = values[part.rows], distance.residual[part.rows], norm.count[cell]
    known = ~np.isnan(left)
    rate = np.where(known, np.where(suspect, 0.1 * part.weight, part.weight) / (count + part.weight), 0.0)
    warm, begun = count >= config.warmup_steps, count > 0
    # Noise is what is usual, not what checkpoints and bursts do at times (continuity sees to those): values beyond two
    # standard deviations count as two. What never moved has no deviation to be held to.
    sigma = np.sqrt(norm.power[cell])
    held = (sigma > 0) & warm
    far = np.where(held, 2 * sigma, np.inf)
    left = np.where(known, np.clip(left, -far, far), 0.0)
    norm.offset[cell] += (rate * left).astype(np.float32)
    square = np.where(count > part.weight, left, 0.0) ** 2 * np.where(held, _CLIPPED_NORMAL, 1.0)
    norm.power[cell] = np.where(begun, norm.power[cell] + rate * (square - norm.power[cell]), 0.0)
    sway = np.sqrt(norm.swing[cell])
    most = np.where((sway > 0) & warm, 2 * sway, np.inf)
    away = np.where(known, np.clip(mine - norm.level[cell], -most, most), 0.0)
    norm.level[cell] += rate * away
    norm.swing[cell] = np.where(begun, norm.swing[cell] + rate * (away**2 - norm.swing[cell]), 0.0)
    norm.count[cell] = np.minimum(count + part.weight * known, config.baseline_steps)


def learn_drift(norm: Norm, distance: Distance, part: Part) -> None:
    """Note how far each residual has gone since the last turn, which is to be the smoothing's length ago."""
    cell = (part.rows, slice(distance.residual.shape[1]))
    reach = norm.reach[cell].astype(np.float64)
    far = np.where(reach > 0, 2 * reach, np.inf)
    left = np.clip(np.nan_to_num(distance.residual[part.rows]), -far, far)
    rate = 1 / (np.minimum(norm.count[cell] / part.weight, _DRIFT_CALLS) + 1)
    norm.drift[cell] += rate * ((left - norm.past[cell]) ** 2 - norm.drift[cell])
    norm.past[cell] = left


def rule(
    norm: Norm,
    distance: Distance,
    groups: Groups,
    part: Part,
    bounds: Bounds,
    believed: NDArray[np.bool_],
    config: Config,
) -> None:
    """Set the least distances that count; `believed` [metric, group] is whether there are peers to a metric."""
    cell = (part.rows, slice(distance.residual.shape[1]))
    count, power, left = norm.count[cell], norm.power[cell], distance.residual[part.rows]
    # A metric that jumps at times on some machine will do so on the others: the mean keeps what the median forgets.
    usual = np.sqrt(groups.total(power) / np.maximum(groups.total(count > 0), 1))
    common = np.fmax(usual, _NORMAL * groups.middle(np.abs(left)))
    # A norm learned from few steps knows its own noise badly.
    noise = np.fmax(np.sqrt(power), groups.each(common)) * (1 + config.warmup_steps / 2 / np.maximum(count, 1))
    floor = np.fmax(
        bounds.floor[part.rows, None], bounds.relative[part.rows, None] * np.abs(distance.center[part.rows])
    )
    unknown = np.flatnonzero(bounds.unknown[part.rows])
    if len(unknown):
        sway = np.sqrt(groups.middle(norm.swing[cell][unknown]))
        floor[unknown] = np.fmax(floor[unknown], config.unknown_metric_spread_floor * sway)
    reach = np.maximum(np.fmax(config.deviation_sigmas * noise, groups.each(floor)), _TINY)
    enough = groups.total(~np.isnan(left)) >= config.min_peers
    norm.reach[cell] = reach
    norm.bound[cell] = np.where(
        (count >= config.warmup_steps) & groups.each(enough & believed[part.rows]), reach, np.nan
    )


def has_peers(norm: Norm, shape: tuple[int, ...], groups: Groups, config: Config) -> NDArray[np.bool_]:
    """[metric, group]: whether the others foretell a member's reading; unknown until enough was seen.

    Where what is left after the peers wanders as far as the reading itself, and wanders slowly (noise does not), the
    entities have nothing to do with each other; where most metrics say so, none is believed.
    """
    cell = tuple(slice(size) for size in shape)
    seen = groups.middle(norm.count[cell]) >= config.comparability_steps
    power, swing = groups.middle(norm.power[cell]), groups.middle(norm.swing[cell])
    tiny = np.finfo(np.float64).tiny
    with np.errstate(over="ignore", invalid="ignore"):
        explained = 1 - np.sqrt(power / np.maximum(swing, tiny))
        persists = 1 - groups.middle(norm.drift[cell] / np.maximum(2 * norm.power[cell], tiny))
        moves = power > tiny
        alone = moves & (explained < config.min_explained_variance) & (persists > config.max_residual_autocorrelation)
    strangers = 2 * (alone & seen).sum(0) > (moves & seen).sum(0)
    judged: NDArray[np.bool_] = seen & ~alone & ~strangers
    return judged
