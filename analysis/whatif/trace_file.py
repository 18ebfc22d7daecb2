"""Reads operation timelines: Parquet or CSV, one row an operation, in the columns of the straggler study's traces.

`optype`, `start_ts` and `duration` (or `end_ts`) are needed, times in seconds. `dp_rank`, `stage`, `rank`, `step`,
`seq_id`, `mc`, `gmc` and `mb_id` are used where they are there. Rows that cannot be used are left out and counted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from analysis.whatif.assembly import assembled
from analysis.whatif.operations import COMPUTE, KNOWN, Operations
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
    if double := sorted({name for name in table.column_names if table.column_names.count(name) > 1}):
        raise ValueError(f"{file}: column {double[0]} is there twice")
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
    return Trace(assembled(columns, kind[usable], kinds, notes), notes)


def _table(file: Path, notes: list[str]) -> Any:
    import pyarrow as pa
    from pyarrow import csv, parquet

    skipped = 0

    def skip(row: Any) -> str:
        nonlocal skipped
        skipped += 1
        return "skip"

    options = csv.ParseOptions(invalid_row_handler=skip)
    try:
        with file.open("rb") as raw:
            head = raw.read(4)
        if head == b"PAR1":
            table = parquet.read_table(file)
        else:
            # With this encoding bytes that are no text end the reading; else the handler fails, which is printed only.
            table = csv.read_csv(file, parse_options=options, read_options=csv.ReadOptions(encoding="utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: neither Parquet nor CSV: no text in UTF-8") from error
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno:
            raise  # of the file, not of what it holds
        raise ValueError(f"{file}: neither Parquet nor CSV: {str(error).splitlines()[0]}") from error
    if skipped:
        notes.append(f"{skipped} rows of another number of columns are left out")
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
        values = column.cast(pa.float64(), safe=False).to_numpy()
    except pa.ArrowException:
        return np.full(len(column), np.nan)
    return np.where(np.abs(values) < _LARGEST, values, np.nan)


def _types(column: Any) -> tuple[Ints, tuple[str, ...]]:
    """[row]: place of its type among the types; -1 where there is none."""
    import pyarrow as pa

    if not pa.types.is_dictionary(column.type):
        try:
            column = column.cast(pa.string()).dictionary_encode()
        except pa.ArrowException:
            return np.full(len(column), -1), ("",)
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
