"""Reads dumps of PyTorch's Flight Recorder, one a rank: JSON, or a pickle of plain data.

Fields are those of version 2 of the dump (torch/csrc/distributed/c10d/FlightRecorder). How long an operation took is
there where TORCH_NCCL_ENABLE_TIMING was on; without, it is taken from the host's call to when the watchdog saw it end.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from analysis.traces.bounded import Scanner, TraceError, members, opened
from analysis.traces.operations import UNKNOWN, Collector, item_bytes, kind_of, number, whole
from analysis.traces.plain_pickle import read_plain

_NANO = 1e-9
_RANK_OF_NAME = re.compile(r"(\d{1,9})(?:\.[A-Za-z]\w*)*$")
_PAIR = re.compile(r"(?:send|recv) (\d{1,9})\s*(?:->|<-)\s*(\d{1,9})")


def read(path: Path, table: Collector, pickled: bool) -> int:
    """Add the operations of one rank's dump; the rank. Raises TraceError for a file that is no such dump."""
    dump = read_plain(path) if pickled else _read_json(path)
    if not isinstance(dump, dict) or not isinstance(dump.get("entries", []), list):
        raise TraceError(f"{path} is no dump of the Flight Recorder: it has no list of entries")
    rank = whole(dump.get("rank"))
    if rank == UNKNOWN:
        named = _RANK_OF_NAME.search(path.name)
        if named is None:
            raise TraceError(f"{path}: neither the dump nor the file's name says which rank it is of; name it …_rank_N")
        rank = int(named[1])
    groups = dump.get("pg_config")
    for entry in dump.get("entries", []):
        if isinstance(entry, dict):
            _add(entry, table, rank, groups if isinstance(groups, dict) else {})
    return rank


def _read_json(path: Path) -> dict[str, Any]:
    """The dump, with entries reduced to what is used as they come."""
    found: dict[str, Any] = {"entries": []}
    with opened(path) as stream:
        for key, value in members(Scanner(stream, path), "entries"):
            if key == "entries" and isinstance(value, dict):
                found["entries"].append({name: value[name] for name in _USED if name in value})
            elif key != "entries":
                found[key] = value
    return found


_USED = (
    "process_group",
    "profiling_name",
    "collective_seq_id",
    "p2p_seq_id",
    "seq_id",
    "is_p2p",
    "input_sizes",
    "output_sizes",
    "input_dtypes",
    "time_created_ns",
    "time_discovered_started_ns",
    "time_discovered_completed_ns",
    "duration_ms",
)


def _add(entry: dict[str, Any], table: Collector, rank: int, groups: dict[str, Any]) -> None:
    name, description = _group_of(entry)
    ranks = _ranks(groups.get(name))
    label = f"{description or 'group'} {name}" + (f" of ranks {ranks[0]}…{ranks[-1]} ({len(ranks)})" if ranks else "")
    title = str(entry.get("profiling_name", ""))
    pair = _PAIR.search(title) if entry.get("is_p2p") else None
    index = entry.get("p2p_seq_id") if pair else entry.get("collective_seq_id", entry.get("seq_id"))
    entered, start, end, seconds = _times(entry)
    table.add(
        table.rank(f"rank {rank}"),
        label,
        kind_of(title.split(" ")[0].removeprefix("nccl:")),
        index=whole(index),
        peer=_peer(pair, ranks, rank, table),
        bytes=_bytes(entry),
        entry=entered,
        start=start,
        end=end,
        seconds=seconds,
    )


def _peer(pair: re.Match[str] | None, ranks: list[int], rank: int, table: Collector) -> int:
    """The other rank of a send or receive, in the job's own numbers."""
    if pair is None:
        return UNKNOWN
    both = [ranks[int(at)] if int(at) < len(ranks) else int(at) for at in pair.groups()]
    return table.rank(f"rank {both[1] if both[0] == rank else both[0]}")


def _times(entry: dict[str, Any]) -> tuple[float, float, float, float]:
    """Entry, start, end and seconds; NaN where the dump does not say."""
    entered, started, ended = (
        number(entry.get(name)) * _NANO
        for name in ("time_created_ns", "time_discovered_started_ns", "time_discovered_completed_ns")
    )
    seconds = number(entry.get("duration_ms")) * 1e-3
    if not np.isfinite(seconds):
        seconds = ended - (started if np.isfinite(started) else entered)
    return entered, ended - seconds, ended, seconds


def _group_of(entry: dict[str, Any]) -> tuple[str, str]:
    group = entry.get("process_group")
    pair = [str(part) for part in group[:2]] if isinstance(group, list | tuple) else [str(entry.get("pg_name", "0"))]
    return pair[0], pair[1] if len(pair) > 1 else ""


def _ranks(group: Any) -> list[int]:
    """The job's ranks of a process group, which the dump holds as a list or as the text of one."""
    ranks = group.get("ranks") if isinstance(group, dict) else None
    try:
        listed = json.loads(ranks[: 1 << 20]) if isinstance(ranks, str) else ranks
    except (ValueError, RecursionError):
        listed = None
    if not isinstance(listed, list | tuple):
        return []
    return [whole(one) for one in listed]


def _bytes(entry: dict[str, Any]) -> float:
    """The larger of what goes in and what comes out."""
    dtypes = entry.get("input_dtypes")
    item = item_bytes(str(dtypes[0])) if isinstance(dtypes, list | tuple) and dtypes else np.nan
    sides = [_elements(entry.get(name)) for name in ("input_sizes", "output_sizes")]
    return max(sides) * item


def _elements(shapes: Any) -> float:
    if not isinstance(shapes, list | tuple):
        return 0.0
    known = [shape for shape in shapes if isinstance(shape, list | tuple)]
    return float(sum(np.prod([number(length, 0.0) for length in shape[:64]]) for shape in known))
