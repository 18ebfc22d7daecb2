"""Finds out which format each log is in, and reads all of them into one table."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from analysis.traces import flight_recorder, inspector, kineto
from analysis.traces.bounded import TraceError, opened
from analysis.traces.members import Members
from analysis.traces.operations import Collector, Operations

Form = Literal["inspector", "flight_recorder", "pickle", "kineto"]
_HEAD = 1 << 16
_SIGNS: tuple[tuple[Form, str], ...] = (
    ("inspector", r'"(coll|p2p)_perf"'),
    ("kineto", r'"(traceEvents|schemaVersion|deviceProperties|distributedInfo|ph)"'),
    ("flight_recorder", r'"(pg_config|pg_status|profiling_name|entries|nccl_version|comm_lib_version)"'),
)


@dataclass(slots=True)
class Logs:
    """All logs of one job."""

    operations: Operations
    files: list[dict[str, Any]] = field(default_factory=list)
    """Of each file: name, format, number of operations and what else its format tells."""


def files_of(paths: Iterable[Path]) -> list[Path]:
    """The files that are meant: of a folder those in it, in order of their names. Raises TraceError."""
    found: list[Path] = []
    for path in paths:
        try:
            inside = sorted(one for one in path.iterdir() if one.is_file()) if path.is_dir() else [path]
        except OSError as error:
            raise TraceError(f"{path} cannot be listed: {error.strerror}") from None
        if not inside:
            raise TraceError(f"{path} holds no file")
        found += inside
    return found


def form_of(path: Path) -> Form:
    """The format of a file, by how it begins. Raises TraceError for one that is none of them."""
    with opened(path) as stream:
        head = stream.read(_HEAD)
    if head[:1] == b"\x80":
        return "pickle"
    text = head.decode("utf-8", "replace")
    for form, sign in _SIGNS:
        if text.lstrip()[:1] in ("{", "[") and re.search(sign, text):
            return form
    if not head:
        raise TraceError(f"{path} is empty")
    raise TraceError(
        f"{path} is no log that is known: NCCL Inspector, Flight Recorder (JSON, pickle), Kineto, or a recording"
    )


def read_logs(paths: Iterable[Path], tell: Callable[[int], None] = lambda done: None) -> Logs:
    """Read all logs; they must be of one format, since each counts ranks in its own way. Raises TraceError.

    `tell` hears how many files are done.
    """
    table, members, files = Collector(), Members(), []
    forms: dict[str, Path] = {}
    for done, path in enumerate(files_of(paths)):
        form = form_of(path)
        forms.setdefault("flight_recorder" if form == "pickle" else form, path)
        if len(forms) > 1:
            (one, first), (other, second) = forms.items()
            raise TraceError(f"{first} is of {one} and {second} of {other}: name logs of one format")
        before = len(table)
        about = _read(path, form, table, members)
        files.append({"file": str(path), **about, "operations": len(table) - before})
        tell(done + 1)
    return Logs(table.table(members.names() if "inspector" in forms else None), files)


def _read(path: Path, form: Form, table: Collector, members: Members) -> dict[str, Any]:
    """Add one file to the table; what its format tells of it."""
    if form == "inspector":
        return {"format": form, "cut_off": inspector.read(path, table, members)}
    if form == "kineto":
        trace = kineto.read(path)
        kineto.add_operations(trace, table)
        return kineto.about(trace)
    return {"format": "flight_recorder", "rank": flight_recorder.read(path, table, form == "pickle")}
