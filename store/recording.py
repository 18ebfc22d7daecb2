"""A recording: a folder of Parquet files, one a table, as recording.md describes it; ours or a third party's."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from store.schema.columns import key_columns
from store.schema.contract import StoreError
from store.schema.sample import Batch
from store.schema.time import LATEST
from store.schema.version import KEY, VERSION, refuse_other

if TYPE_CHECKING:
    import pyarrow as pa


class RecordingError(StoreError):
    """A folder is no recording, or one of its files is not as it must be; one line with file and column."""


class Recording:
    """A recording to read. Each file needs `time` (integer, Unix ns) and `machine` (string), in any order."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise RecordingError(f"{self.folder} is not a folder; name one that holds a recording's .parquet files")
        try:
            self._files = {file.stem: file for file in sorted(self.folder.glob("*.parquet")) if file.is_file()}
        except OSError as error:
            raise RecordingError(f"{self.folder} cannot be listed: {error.strerror}") from error
        if not self._files:
            raise RecordingError(f"{self.folder} holds no .parquet file, so it is no recording")
        self._checked: set[str] = set()
        self._bounds: list[tuple[Path, int, int]] | None = None

    def write(self, batches: Iterable[Batch]) -> NoReturn:
        """A recording is read-only: always raises RecordingError."""
        raise RecordingError(f"{self.folder} is a recording and is read-only; name a .db file to write to")

    def read(self, table: str, after: int = 0, until: int = LATEST, columns: Collection[str] | None = None) -> pa.Table:
        """Rows with after < time <= until as an Arrow table; only row groups of that span are read from disk."""
        import pyarrow.parquet as pq

        from store import arrow

        file = self._files.get(table)
        if file is None:
            return arrow.empty(table)
        with _explained(file):
            schema = pq.read_schema(file)
            self._check(file, schema)
            wanted = schema.names if columns is None else {*key_columns(table), *columns}
            found = pq.read_table(
                file,
                columns=[name for name in schema.names if name in wanted],
                filters=[("time", ">", after), ("time", "<=", until)],
                partitioning=None,  # or a folder named a=b would become a column
            )
            return arrow.in_time(arrow.conform(table, found))

    def span(self, after: int = 0) -> tuple[int, int] | None:
        """Bounds of the times later than `after`, from the files' own statistics of their row groups."""
        if self._bounds is None:
            self._bounds = [(file, *bound) for file in self._files.values() for bound in self._bounds_of(file)]
        ends = [(self._first(bound, after), bound[2]) for bound in self._bounds if bound[2] > after]
        return (min(first for first, _ in ends), max(last for _, last in ends)) if ends else None

    def tables(self) -> tuple[str, ...]:
        """Names of the tables, sorted."""
        return tuple(self._files)

    def close(self) -> None:
        """Nothing: no file stays open between reads."""

    def _first(self, bound: tuple[Path, int, int], after: int) -> int:
        """The least time later than `after` of a row group; of one that begins before it, statistics cannot tell."""
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        file, first, last = bound
        if first > after:
            return first
        with _explained(file):
            later = [("time", ">", after), ("time", "<=", last)]
            times = pq.read_table(file, columns=["time"], filters=later, partitioning=None).column("time")
            return int(pc.min(times).as_py())

    def _check(self, file: Path, schema: pa.Schema) -> None:
        import pyarrow as pa

        if file.stem in self._checked:
            return
        # What others have written names no version: docs/recording.md is its form.
        version = (schema.metadata or {}).get(KEY, b"%d" % VERSION)
        refuse_other(file, int(version) if version.isdigit() else 0)
        for name, promise, right in (
            ("time", "integers (Unix nanoseconds)", pa.types.is_integer),
            ("machine", "strings", _is_text),
        ):
            if schema.names.count(name) != 1:
                raise RecordingError(f"{file}: column {name} is {'twice there' if name in schema.names else 'missing'}")
            kind = schema.field(name).type
            if not right(kind):
                raise RecordingError(f"{file}: column {name} must hold {promise}, not {kind}")
        self._checked.add(file.stem)

    def _bounds_of(self, file: Path) -> list[tuple[int, int]]:
        """Least and greatest time of each row group; of the whole file where it has no statistics."""
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        with _explained(file):
            form = pq.read_metadata(file)
            self._check(file, form.schema.to_arrow_schema())
            at = form.schema.names.index("time")
            groups = [form.row_group(n).column(at).statistics for n in range(form.num_row_groups)]
            if all(group is not None and group.has_min_max for group in groups):
                return [(group.min, group.max) for group in groups]
            ends = pc.min_max(pq.read_table(file, columns=["time"], partitioning=None).column("time")).as_py()
            return [(ends["min"], ends["max"])] if ends["min"] is not None else []


def marked(schema: pa.Schema) -> pa.Schema:
    """The schema of a file of a recording, with the version of its form."""
    return schema.with_metadata({**(schema.metadata or {}), KEY: b"%d" % VERSION})


@contextmanager
def _explained(file: Path) -> Iterator[None]:
    """Turn what pyarrow and the store's own checks say about a file into one line that names it."""
    import pyarrow as pa

    try:
        yield
    except RecordingError:
        raise
    except StoreError as error:
        raise RecordingError(f"{file}: {error}") from error
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise RecordingError(f"{file} cannot be read as Parquet: {_first_line(error)}") from error


def _is_text(kind: pa.DataType) -> bool:
    import pyarrow as pa

    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(value) or pa.types.is_large_string(value))


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
