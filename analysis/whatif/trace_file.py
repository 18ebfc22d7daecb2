"""Reads operation timelines: Parquet or CSV, one row an operation, in the columns of the straggler study's traces.

`optype`, `start_ts` and `duration` (or `end_ts`) are needed, times in seconds. `dp_rank`, `stage`, `rank`, `step`,
`seq_id`, `mc`, `gmc` and `mb_id` are used where they are there. Rows that cannot be used are left out and counted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.whatif.operations import COMPUTE, KNOWN, Operations, joined, positions
from detector.stats.arrays import Bools, Floats, Ints

_NUMBERS = ("dp_rank", "stage", "rank", "step", "start_ts", "duration", "end_ts", "seq_id", "mc", "gmc", "mb_id")
_NUMBER = r"^\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*$"
_LARGEST = 1e15
"""Above this a number is no rank, step or second."""


@dataclass(slots=True)
class Trace:
    """What a file holds."""

    found: Operations
    notes: list[str] = field(default_factory=list)
    """What was left out or assumed, a sentence each."""


def read_trace(file: Path) -> Trace:
    """Read a .parquet or .csv (also .csv.gz) file.

    Raises ValueError for a file of another format, missing columns, or no usable row; OSError where it cannot be read.
    """
    notes: list[str] = []
    table = _table(file, notes)
    if missing := [name for name in ("optype", "start_ts") if name not in table.column_names]:
        raise ValueError(
            f"{file}: no column {' and '.join(missing)}; an operation trace has optype, start_ts, duration"
        )
    if not {"duration", "end_ts"} & set(table.column_names):
        raise ValueError(f"{file}: no column duration or end_ts; an operation trace needs one of them, in seconds")
    columns = {name: _numbers(table.column(name)) for name in _NUMBERS if name in table.column_names}
    if "duration" not in columns:
        columns["duration"] = columns["end_ts"] - columns["start_ts"]
    kind, kinds = _types(table.column("optype"))
    usable = _usable(columns, kind, kinds, notes)
    if not usable.any():
        raise ValueError(f"{file}: no usable row among {len(usable)}; types such as {KNOWN[0]} with times are needed")
    columns = {name: column[usable] for name, column in columns.items()}
    return Trace(_operations(columns, kind[usable], kinds, notes), notes)


def _table(file: Path, notes: list[str]) -> Any:
    import pyarrow as pa
    from pyarrow import csv, parquet

    skipped = []
    options = csv.ParseOptions(invalid_row_handler=lambda row: skipped.append(row) or "skip")
    try:
        with file.open("rb") as head:
            is_parquet = head.read(4) == b"PAR1"
        table = parquet.read_table(file) if is_parquet else csv.read_csv(file, parse_options=options)
    except pa.ArrowException as error:
        raise ValueError(f"{file}: neither Parquet nor CSV: {str(error).splitlines()[0]}") from error
    if skipped:
        notes.append(f"{len(skipped)} rows of another number of columns are left out")
    return table


def _numbers(column: Any) -> Floats:
    """A column as numbers; NaN for what is none."""
    import pyarrow as pa
    from pyarrow import compute

    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        column = compute.if_else(compute.match_substring_regex(column, _NUMBER), column, None)
        column = compute.utf8_trim_whitespace(column)
    try:
        values = column.cast(pa.float64()).to_numpy()
    except pa.ArrowException:
        return np.full(len(column), np.nan)
    return np.where(np.abs(values) < _LARGEST, values, np.nan)


def _types(column: Any) -> tuple[Ints, tuple[str, ...]]:
    """[row]: place of its type among the types; -1 where there is none."""
    import pyarrow as pa

    if not pa.types.is_dictionary(column.type):
        column = column.cast(pa.string()).dictionary_encode()
    column = column.unify_dictionaries().combine_chunks()
    names = [str(name).strip().lower().replace("_", "-") for name in column.dictionary.to_pylist()]
    kinds, number = np.unique(np.array([*names, ""]), return_inverse=True)
    codes = np.asarray(column.indices.cast(pa.float64()).to_numpy(zero_copy_only=False))
    kind = np.where(np.isnan(codes), -1, number[np.nan_to_num(codes).astype(np.int64)])
    return kind, tuple(map(str, kinds))


def _usable(columns: dict[str, Floats], kind: Ints, kinds: tuple[str, ...], notes: list[str]) -> Bools:
    known = np.array([name in KNOWN or name.endswith(COMPUTE) for name in kinds])
    is_known: Bools = known[kind] & (kind >= 0)
    if others := sorted({kinds[at] or "none" for at in np.unique(kind[~is_known])}):
        notes.append(f"{int((~is_known).sum())} rows of other types are left out: {', '.join(others[:4])}")
    placed = [np.isfinite(columns[name]) for name in ("step", "dp_rank", "stage", "rank") if name in columns]
    timed = np.isfinite(columns["start_ts"]) & (columns["duration"] >= 0)
    usable: Bools = is_known & timed & np.logical_and.reduce([timed, *placed])
    if wrong := int((is_known & ~usable).sum()):
        notes.append(f"{wrong} rows without times, rank, stage or step are left out")
    return usable


def _operations(columns: dict[str, Floats], kind: Ints, kinds: tuple[str, ...], notes: list[str]) -> Operations:
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
    chunk = np.maximum(whole["mc"], 0)
    global_chunk = np.where((whole["gmc"] >= 0) & ("gmc" in columns), whole["gmc"], stage + chunk * len(stages))
    start = columns["start_ts"] - _least(columns["start_ts"], step)[step]
    order = np.lexsort((kind, whole["seq_id"], start, worker, step))
    order = order[_is_first(order, (step, worker, kind, start, columns["duration"], whole["seq_id"]), notes)]
    placed = (step, worker, replica, dp_rank, stage, rank, kind, start, columns["duration"], chunk, global_chunk)
    turn = positions(joined(step, worker, kind, chunk)[order])
    micro_batch = whole["mb_id"][order] if "mb_id" in columns else turn
    return Operations(*(column[order] for column in placed), micro_batch, kinds, steps)


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
