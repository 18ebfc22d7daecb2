"""Orders the rows of a trace by step, worker and start, and numbers what a trace may leave unnumbered."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.whatif.operations import Operations, joined, positions
from detector.stats.arrays import Bools, Floats, Ints


def assembled(columns: dict[str, Floats], kind: Ints, kinds: tuple[str, ...], notes: list[str]) -> Operations:
    """The operations of usable rows; `columns` are [row], `kind` is an index into `kinds`.

    Adds to `notes` what was assumed or left out.
    """
    size = len(kind)
    whole = {
        name: _whole(columns.get(name), size) for name in ("step", "dp_rank", "stage", "seq_id", "mc", "gmc", "mb_id")
    }
    stages, stage = np.unique(whole["stage"], return_inverse=True)
    steps, step = np.unique(whole["step"], return_inverse=True)
    if int(stages[-1]) + 1 != len(stages):
        notes.append("stages are not numbered 0, 1, 2, …: they are taken in the order of their numbers")
    dp_rank, rank = _ranks(columns, whole["dp_rank"], stage, notes)
    replica = _replicas(dp_rank, stage, rank)
    worker = replica * len(stages) + stage
    chunk = _codes(np.maximum(whole["mc"], 0))
    chunks = (int(chunk.max()) + 1) * len(stages)
    named = (whole["gmc"] >= 0) & (whole["gmc"] < chunks) & ("gmc" in columns)
    global_chunk = np.where(named, whole["gmc"], stage + chunk * len(stages))
    start = columns["start_ts"] - _least(columns["start_ts"], step)[step]
    order = np.lexsort((kind, whole["seq_id"], start, worker, step))
    order = order[_is_first(order, (step, worker, kind, start, columns["duration"], whole["seq_id"]), notes)]
    placed: dict[str, Any] = {"step": step, "worker": worker, "replica": replica, "dp_rank": dp_rank, "stage": stage}
    placed |= {"rank": rank, "kind": kind, "start": start, "duration": columns["duration"]}
    placed |= {
        "chunk": chunk,
        "global_chunk": global_chunk,
        "micro_batch": np.where(whole["mb_id"] < 0, -1, _codes(whole["mb_id"])),
    }
    placed = {name: column[order] for name, column in placed.items()}
    if "mb_id" not in columns:
        placed["micro_batch"] = positions(joined(*(placed[name] for name in ("step", "worker", "kind", "chunk"))))
    return Operations(**placed, kinds=kinds, steps=steps)


def _whole(column: Floats | None, size: int) -> Ints:
    """Whole numbers; 0 without the column, -1 where it has no number."""
    if column is None:
        return np.zeros(size, np.int64)
    return np.nan_to_num(column, nan=-1.0).round().astype(np.int64)


def _ranks(columns: dict[str, Floats], dp_rank: Ints, stage: Ints, notes: list[str]) -> tuple[Ints, Ints]:
    """[row]: data rank and global rank; each from the other where one is missing."""
    if "rank" not in columns:
        return dp_rank, _codes(joined(stage, _codes(dp_rank)))
    rank = _whole(columns["rank"], len(stage))
    if "dp_rank" not in columns:
        notes.append("no column dp_rank: ranks of one stage count as data parallel")
        dp_rank = _numbered_within(stage, rank)
    return dp_rank, rank


def _replicas(dp_rank: Ints, stage: Ints, rank: Ints) -> Ints:
    """[row]: number of the model replica; ranks that share data rank and stage belong to one each."""
    dp = _codes(dp_rank)
    return _codes(joined(dp, _numbered_within(joined(dp, stage), rank)))


def _numbered_within(group: Ints, value: Ints) -> Ints:
    """[row]: the place of its value among the values of its group."""
    value = _codes(value)
    pairs, back = np.unique(joined(group, value), return_inverse=True)
    group_of = pairs // (int(value.max()) + 1)
    return (np.arange(len(pairs)) - np.searchsorted(group_of, group_of))[back]


def _codes(values: Ints) -> Ints:
    """[value]: its place among the different values."""
    return np.unique(values, return_inverse=True)[1]


def _least(values: Floats, group: Ints) -> Floats:
    out = np.full(int(group.max(initial=-1)) + 1, np.inf)
    np.minimum.at(out, group, values)
    return out


def _is_first(order: Ints, keys: tuple[NDArray[Any], ...], notes: list[str]) -> Bools:
    """Which rows, in this order, do not repeat the one before."""
    same = np.logical_and.reduce([key[order[1:]] == key[order[:-1]] for key in keys])
    if same.any():
        notes.append(f"{int(same.sum())} repeated rows are left out")
    return np.append(True, ~same)
