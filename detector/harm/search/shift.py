"""Shift: the machine on which something changed when its task lost pace, and on no other.

A search that begins with the harm. Floors in units are left out: what one reading shifts by when the pace falls is
compared with what the same reading of all peers shifts by, and with its own past.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detector.harm.search.fall import Fall
from detector.harm.search.readings import BEFORE, KNOWN, LEAST, ROW_NS, Memory
from detector.methods.peers.groups.assignment import few_machines
from detector.methods.peers.state import Panel
from detector.model.kinds import draws, is_done, is_fault, tells_contention, tells_use
from detector.model.metrics import Bounds, is_counter
from detector.stats.arrays import Bools, Ints, Singles
from detector.stats.grouped import middle
from detector.stats.robust import NORMAL
from store.schema.time import SECOND

FAR, _ALONE = 6.0, 3.0
"""Spreads over the peers that make a cause; times as far as the next machine."""
_RELATIVE = 0.003
"""The least spread, as a share of the peers' reading."""
_SLIGHT = 0.01
"""The least relative shift, or in seconds spent a second ..."""
_HELD_UP, _DRAWN = 0.5, 0.125
"""... and as a share of the task's loss: who holds it up does as much, and draws a little more than those who wait."""
_PROCESSORS = 0.03
"""The least shift in the use of a machine's processors, as a share of all of them: less is some other work."""
_FEWEST, _FEW = 4, 3.0
"""Machines, at least; and over their number, how much more it takes: what is usual of few is known badly."""
_NEARLY_ALL = 0.9
"""Of the rows in which the peers are known."""
_SCALES = 2.0
"""What reads so many times as much as its peers, or as little, does something else."""
_TINY = 1e-12
_ELSEWHERE = ("_celsius", "out_of_sequence_total", "remapped_rows", "ecc_corrected_total", "iteration_seconds")
"""Ends of readings that follow a change elsewhere, or cost no time: less work is cooler, on another route packets
overtake others, a memory that corrects is as fast, an iteration ends for all when it does for the last."""
_AMOUNTS = ("bytes_total", "_seconds_total", "_joules_total", "_ticks_total")
"""Ends of counters of amounts; the others count events, and the number of those has a noise of its own."""


@dataclass(frozen=True, slots=True)
class Look:
    """How the time since a fall is compared with that before it."""

    after: int
    """Rows since the fall."""
    loss: float
    """Of pace, as a logarithm."""
    coarse: bool
    """Whether rows are means over twice the time: noise that persists makes more of finer ones look sure."""

    @property
    def row_s(self) -> float:
        """The length of a row, seconds."""
        return (2 if self.coarse else 1) * ROW_NS / SECOND


@dataclass(frozen=True, slots=True)
class Shifted:
    """A reading that changed on one machine when its task lost pace."""

    table: str
    metric: int
    entity: int
    far: float
    """In spreads over the peers."""
    alone: float
    """Times as far as the next machine."""
    size: float
    """Signed, in the metric's unit."""
    whole: bool
    """Whether most devices of the machine changed alike."""
    usual: float
    """How far above the peers' median it may be: chips draw more or less, ..."""
    before: float | None = None
    """... and machines of other tasks read something else; then, what it read before."""


def shifted_with(
    memory: Memory | None, fall: Fall, coarse: bool, table: str, panel: Panel, task: int, bounds: Bounds
) -> Iterator[Shifted]:
    """Readings of one table that changed with the fall on one machine of the task alone, by `coarse` rows or fine."""
    if memory is None or len(memory) <= fall.rows + BEFORE:
        return
    rows = _arranged(memory.last(fall.rows + 2 * BEFORE), fall.rows, coarse)
    look = Look(fall.rows // 2 if coarse else fall.rows, fall.size, coarse)
    alone = few_machines(panel, rows.shape[2], _FEWEST)
    if alone[panel.task_index[: rows.shape[2]] == task].any():
        yield from _among_tasks(rows, np.flatnonzero(alone), look, table, panel, task, bounds)
        return
    for number, (of, _) in enumerate(panel.group_labels):
        members = np.flatnonzero(panel.group[: rows.shape[2]] == number)
        if of == task and len(np.unique(panel.machine[members])) >= _FEWEST:
            yield from _within(rows[:, :, members], members, look, table, panel, bounds)


def _among_tasks(
    rows: Singles, members: Ints, look: Look, table: str, panel: Panel, task: int, bounds: Bounds
) -> Iterator[Shifted]:
    """The same for a task of few machines, beside those of other such tasks: by what no work of theirs moves."""
    if len(np.unique(panel.machine[members])) < _FEWEST:
        return
    for one in _within(rows[:, :, members], members, look, table, panel, bounds):
        key = f"{table}.{panel.window.metrics[one.metric]}"
        if panel.task_index[one.entity] == task and (is_fault(key) or (tells_contention(key) and one.size > 0)):
            old = rows[: -look.after, one.metric]
            before = old[:, one.entity]
            usual = before - middle(old[:, members])
            yield replace(one, before=float(np.nanmean(before)), usual=float(np.nanmean(usual)))


def _within(rows: Singles, members: Ints, look: Look, table: str, panel: Panel, bounds: Bounds) -> Iterator[Shifted]:
    """The same of one peer group; rows are [row, metric, member]."""
    names = panel.window.metrics[: rows.shape[1]]
    keys = [f"{table}.{name}" for name in names]
    counts = np.array([is_counter(table, name) and not name.endswith(_AMOUNTS) for name in names])
    # All members end as many iterations: who does less, or more, in each does other work.
    shown = np.array([not (key.endswith(_ELSEWHERE) or is_done(key) or tells_use(key)) for key in keys])
    size, far, level = compare(rows, look, counts)
    spent = np.array([name.endswith("_seconds_total") for name in names])[:, None]
    processors = np.array([_PROCESSORS * key.startswith("host.cpu_") for key in keys])[:, None]
    drawn = np.array([draws(key) for key in keys])[:, None] & (size > 0) & look.coarse
    slight = np.maximum(_SLIGHT, np.where(drawn, _DRAWN, _HELD_UP) * look.loss)
    far[np.abs(size) < np.maximum(processors, slight * np.where(spent, 1.0, level))] = 0.0
    bad = np.where(size > 0, bounds.high[: len(names), None], bounds.low[: len(names), None]) & shown[:, None]
    far = np.where(bad, far, np.minimum(far, FAR / 2))
    machines, place = np.unique(panel.machine[members], return_inverse=True)
    worst = np.zeros((len(names), len(machines)))
    np.maximum.at(worst.T, place, far.T)
    first, second = np.sort(worst, axis=1)[:, [-1, -2]].T
    least = FAR * (1 + _FEW / len(machines))
    for metric in np.flatnonzero((first >= least) & (first >= _ALONE * np.maximum(second, 1.0))):
        at = int(far[metric].argmax())
        alone = float(first[metric] / max(second[metric], 1.0))
        mine = far[metric, place == place[at]]
        whole = len(mine) > 2 and 2 * int((mine >= first[metric] / 3).sum()) > len(mine)
        old, shift = rows[: -look.after, metric], float(size[metric, at])
        usual = float(np.nanmean(old[:, at] - middle(old))) if draws(keys[metric]) else 0.0
        yield Shifted(table, int(metric), int(members[at]), float(first[metric]), alone, shift, whole, usual)


def left(memory: Memory, shifted: Shifted, panel: Panel, last: int = LEAST) -> float:
    """What share of a shift is left in the `last` rows, by the peers of today; 1 where nothing is known."""
    rows = memory.last(last)[:, shifted.metric]
    apart = rows[:, shifted.entity] - middle(rows[:, peers_of(panel, shifted.entity, rows.shape[1])])
    now = float(np.nanmean(apart)) - shifted.usual if np.isfinite(apart).any() else shifted.size
    return now / shifted.size


def peers_of(panel: Panel, entity: int, count: int) -> Ints:
    """Those, of the first `count` entities, that one is compared with, itself too."""
    few = few_machines(panel, count, _FEWEST)
    return np.flatnonzero(few if few[entity] else panel.group[:count] == panel.group[entity])


def compare(rows: Singles, look: Look, counts: Bools) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Signed shift and distance in spreads, [metric, member], of rows [row, metric, member] since the fall.

    The distance is 0 where the shift began before the first of these rows or after it, has passed, or is unknown.
    Third: the peers' readings, [metric, 1].
    """
    after, just = look.after, 2 if look.coarse else 3
    rows = _to_scale(rows, after)
    center = middle(rows)[:, :, None]
    apart = rows - center
    before, later = apart[:-after], apart[-after:]
    usual = np.nanmean(before, axis=0)
    size, end = np.nanmean(later, axis=0) - usual, np.nanmean(later[after // 2 :], axis=0) - usual
    first = np.nanmean(later[: 1 if look.coarse else 2], axis=0) - usual
    lasts = (end * np.sign(size) > np.abs(size) / 2) & (first * np.sign(size) > np.abs(size) / 4)
    there = (~np.isnan(later)).sum(0)  # others may be read too rarely, or missed by an agent that restarts
    lasts &= (there > KNOWN * after) & (there > _NEARLY_ALL * there.max(1, keepdims=True))
    size = np.where(lasts, size, 0.0)
    size = np.nan_to_num(size - middle(size)[:, None])
    level = np.abs(center[:, :, 0]).mean(0)[:, None]
    spread = NORMAL * middle(np.abs(size))[:, None]
    noise = np.sqrt(np.nanmean((before - usual) ** 2, axis=0) * (2 / after + 1 / len(before)))
    common = middle(noise)[:, None]
    seconds = after * look.row_s
    chance = np.where(counts[:, None], np.sqrt(np.nanmax(np.abs(rows), axis=0) / seconds) + 1 / seconds, 0.0)
    unit = np.maximum.reduce([np.broadcast_to(spread, size.shape), noise, np.broadcast_to(common / 2, size.shape)])
    unit = np.maximum(np.maximum(unit, chance), _RELATIVE * level + _TINY)
    latest = np.abs(np.nanmean(before[-just:], axis=0) - usual)
    far = np.where(np.nan_to_num(latest, nan=np.inf) < np.abs(size) / 2, np.abs(size) / unit, 0.0)
    return size, far, np.nan_to_num(level)


def _arranged(rows: Singles, after: int, coarse: bool) -> Singles:
    """Rows before and since a fall; of fine ones the last before it is left out, as it may have begun in that."""
    before, later = rows[:-after], rows[-after:]
    if not coarse:
        return np.concatenate([before[:-1], later])
    even = np.concatenate([before[len(before) % 2 :], later[after % 2 :]])
    found: Singles = np.nanmean(even.reshape(len(even) // 2, 2, *even.shape[1:]), axis=1)
    return found


def _to_scale(rows: Singles, after: int) -> Singles:
    """The rows as if all had read alike before the last `after`: of slower iterations each does less in proportion."""
    mine = np.nanmean(rows[:-after], axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        scale = middle(mine)[:, None] / mine
    fits = (scale > 1 / _SCALES) & (scale < _SCALES)
    found: Singles = rows * np.where(fits, scale, 1.0).astype(np.float32)
    return found
