"""Writing recordings: a store's span streamed in pieces, or tables that are already in memory."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from store import arrow
from store.recording import RecordingError, marked
from store.schema.contract import Store, StoreError
from store.transfer.scan import pieces

Columns: TypeAlias = "pa.Table | Mapping[str, Any]"
"""A table in memory: Arrow, or numpy arrays and lists by column name."""

_GROUP_ROWS = 1 << 17


class RecordingWriter:
    """Writes a recording piece by piece; nothing is seen at `folder` before all of it is there.

    Use it as a context manager. A folder that is not empty is refused, or replaced with `overwrite` where it holds
    nothing but a recording. Raises RecordingError.
    """

    def __init__(self, folder: str | Path, overwrite: bool = False) -> None:
        self.folder = Path(folder).absolute()
        if self.folder.is_file() or (self.folder.is_dir() and any(self.folder.iterdir()) and not overwrite):
            raise RecordingError(f"{self.folder} is there already: name another folder, or say --overwrite")
        foreign = sorted(place.name for place in _inside(self.folder) if not _belongs(place))
        if foreign:
            raise RecordingError(f"{self.folder} holds {foreign[0]}, which belongs to no recording: it is not replaced")
        self._partial = self.folder.with_name(f".{self.folder.name}.partial-{os.getpid()}")
        self._writers: dict[str, pq.ParquetWriter] = {}

    def __enter__(self) -> RecordingWriter:
        with self._explained():
            shutil.rmtree(self._partial, ignore_errors=True)
            self._partial.mkdir(parents=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            with self._explained():
                for writer in self._writers.values():
                    writer.close()
                if kind is None:
                    self._publish()
        finally:
            shutil.rmtree(self._partial, ignore_errors=True)

    def add(self, table: str, columns: Columns) -> None:
        """Append rows to a table, later than those of the piece before; the first piece sets the columns."""
        with self._explained(table):
            found = columns if isinstance(columns, pa.Table) else pa.table(dict(columns))
            missing = [name for name in ("time", "machine") if name not in found.column_names]
            if missing:
                raise RecordingError(f"table {table} has no column {missing[0]}")
            rows = arrow.in_time(arrow.conform(table, found))
            writer = self._writers.get(table)
            if writer is None:
                place = self._partial / f"{table}.parquet"
                writer = self._writers[table] = pq.ParquetWriter(place, marked(rows.schema), compression="zstd")
            writer.write_table(_as(rows, writer.schema), row_group_size=_GROUP_ROWS)

    def label(self, labels: Mapping[str, Any]) -> None:
        """Write labels.json: what is known to be wrong in this recording."""
        with self._explained():
            (self._partial / "labels.json").write_text(json.dumps(labels, indent=1) + "\n")

    def _publish(self) -> None:
        old = self.folder.with_name(f"{self._partial.name}-old")
        if self.folder.exists():
            self.folder.rename(old)
        self._partial.rename(self.folder)
        shutil.rmtree(old, ignore_errors=True)

    @contextmanager
    def _explained(self, table: str = "") -> Iterator[None]:
        try:
            yield
        except StoreError as error:
            if isinstance(error, RecordingError):
                raise
            raise RecordingError(f"{self.folder} cannot be written: {error}") from error
        except (pa.ArrowException, OSError) as error:
            text = getattr(error, "strerror", None) or next(iter(str(error).splitlines()), type(error).__name__)
            raise RecordingError(f"{self.folder} cannot be written{table and f' (table {table})'}: {text}") from error


def write_recording(
    folder: str | Path, tables: Mapping[str, Columns], labels: Mapping[str, Any] | None = None, overwrite: bool = False
) -> None:
    """Write tables as a recording, rows in order of time, with labels.json where there are labels."""
    with RecordingWriter(folder, overwrite) as writer:
        for name, columns in tables.items():
            writer.add(name, columns)
        if labels is not None:
            writer.label(labels)


def export(
    store: Store,
    folder: str | Path,
    span: tuple[int, int],
    progress: Callable[[int], None] = lambda until: None,
    overwrite: bool = False,
) -> int:
    """Write the rows with span[0] < time <= span[1] as a recording; returns how many.

    Piece by piece, so that memory stays bounded; `progress` hears up to which time (Unix ns) all is written.
    Raises RecordingError, also when there is nothing in that span, and StoreError.
    """
    total = 0
    with RecordingWriter(folder, overwrite) as writer:
        for (_, end), tables in pieces(store, span):
            for table, rows in tables.items():
                writer.add(table, rows)
                total += rows.num_rows
            progress(end)
        if not total:
            raise RecordingError("the store has nothing in that span of time, so there is nothing to export")
    return total


def _inside(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def _belongs(place: Path) -> bool:
    return place.is_file() and (place.suffix == ".parquet" or place.name == "labels.json")


def _as(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows in the columns of the first piece: what it had not is left out, what is missing now is null."""
    columns = [
        rows.column(field.name).cast(field.type) if field.name in rows.column_names else pa.nulls(len(rows), field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)
