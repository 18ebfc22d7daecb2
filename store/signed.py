"""A store that accepts verdicts and orders only with the right signature.

Every program that may write samples may write any row. The next detector restores its state from verdicts, and they
start the command that drains a machine; orders close incidents and put machines into maintenance; a lease silences all
detectors but one. So the detector and the operator's commands sign such rows with a key that agents do not have, and
the detector ignores all others. Zoom requests are for agents: each is signed with a key of its machine alone, which is
derived from the detector's, so that an agent can check its own requests and make none for others.
"""

from __future__ import annotations

import hmac
import json
import logging
import os
import secrets
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from store.schema.catalogue import METRICS
from store.schema.columns import fitted, key_columns, type_of
from store.schema.contract import Store, StoreError
from store.schema.sample import Batch, Sample, Value
from store.schema.time import LATEST

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

SIGNATURE = "signature"
SOURCES = frozenset({"operator", "detector"})
"""Sources of the events that are signed."""
ZOOM_SOURCE, ZOOM_CODE = "detector", "zoom"
"""Source and code of the events that are signed with the key of their machine."""
UNSIGNED = "(unsigned) "
"""Before the message of a row that has not the signature of this fleet's detector, where people look at it."""
_LEAST = 32
_NOT_STORED = (None, "", float("inf"), float("-inf"))
_SIGNED = {
    table: tuple(
        sorted({*key_columns(table)[2:], *(m.name for m in METRICS.values() if m.table == table)} - {SIGNATURE})
    )
    for table in ("verdict", "event", "lease", "delivery")
}
"""The columns that a signature covers, beside table, time and machine."""


class Signed:
    """A store that signs verdicts and orders when it writes them, and ignores unsigned ones when it reads."""

    def __init__(self, store: Store, key: bytes) -> None:
        self.store, self._key = store, key
        self.refused = 0
        """Rows ignored."""

    def write(self, batches: Iterable[Batch]) -> None:
        """Store these batches; verdicts and orders get a signature."""
        self.store.write(
            [replace(batch, samples=tuple(self._sign(batch, one) for one in batch.samples)) for batch in batches]
        )

    def read(self, table: str, after: int = 0, until: int = LATEST, columns: Collection[str] | None = None) -> pa.Table:
        """Rows with after < time <= until, without those that have a wrong signature; the contract has the details."""
        if table not in _SIGNED:
            return self.store.read(table, after, until, columns)
        wanted = None if columns is None else {*key_columns(table), *columns}
        found = self.store.read(table, after, until, None if columns is None else {*_SIGNED[table], SIGNATURE})
        found = self._trusted(table, found)
        return found.select([name for name in found.column_names if wanted is None or name in wanted])

    def span(self, after: int = 0) -> tuple[int, int] | None:
        """Times of the oldest and the newest row later than `after`, of any row."""
        return self.store.span(after)

    def tables(self) -> tuple[str, ...]:
        """Names of the tables that are there."""
        return self.store.tables()

    def close(self) -> None:
        """Let go of the store."""
        self.store.close()

    def _sign(self, batch: Batch, sample: Sample) -> Sample:
        if not _needs(sample.table, sample.values):
            return sample
        time = batch.time if sample.time is None else sample.time
        signature = self._signature(sample.table, time, batch.machine, sample.values)
        return replace(sample, values={**sample.values, SIGNATURE: signature})

    def _trusted(self, table: str, found: pa.Table) -> pa.Table:
        suspects = self._suspects(table, found)
        if not suspects:
            return found
        rows = found.take(suspects).to_pylist()
        bad = {at for at, row in zip(suspects, rows, strict=True) if not self._is_right(table, row)}
        if not bad:
            return found
        return self._without(table, found, bad)

    def _without(self, table: str, found: pa.Table, bad: Collection[int]) -> pa.Table:
        """The rows without the bad ones, by their places."""
        import pyarrow as pa

        if not self.refused:
            log.warning(
                "%d rows of table %s are ignored, as later ones will be: they lack this detector's signature",
                len(bad),
                table,
            )
        self.refused += len(bad)
        return found.filter(pa.array([at not in bad for at in range(found.num_rows)], pa.bool_()))

    def _suspects(self, table: str, found: pa.Table) -> list[int]:
        """Places of the rows that need a signature."""
        if table != "event":
            return list(range(found.num_rows))
        if "source" not in found.column_names:
            return []
        import pyarrow as pa
        import pyarrow.compute as pc

        ours = pc.is_in(found.column("source"), pa.array(sorted(SOURCES), pa.string()))
        places: list[int] = pc.indices_nonzero(ours).to_pylist()
        return places

    def _is_right(self, table: str, row: Mapping[str, Any]) -> bool:
        expected = self._signature(table, row["time"], row["machine"], row)
        return hmac.compare_digest(expected.encode(), str(row.get(SIGNATURE) or "").encode())

    def _signature(self, table: str, time: int, machine: str, values: Mapping[str, Value]) -> str:
        is_zoom = table == "event" and (values.get("source"), values.get("code")) == (ZOOM_SOURCE, ZOOM_CODE)
        return signature_of(zoom_key(self._key, machine) if is_zoom else self._key, table, time, machine, values)


class Marked(Signed):
    """A store for people to look at: messages of verdicts and orders without the right signature say so."""

    def _without(self, table: str, found: pa.Table, bad: Collection[int]) -> pa.Table:
        """The rows, the bad ones marked; of tables that are no messages to people, without them."""
        import pyarrow as pa

        if "message" not in found.column_names or table not in ("verdict", "event"):
            return super()._without(table, found, bad)
        texts = found.column("message").to_pylist()
        marked = [f"{UNSIGNED}{text or ''}" if at in bad else text for at, text in enumerate(texts)]
        at = found.column_names.index("message")
        return found.set_column(at, "message", pa.array(marked, pa.string()))


def signature_of(key: bytes, table: str, time: int, machine: str, values: Mapping[str, Value]) -> str:
    """HMAC-SHA256 of the row as any store returns it: some store no infinity, no empty text and no minus zero."""
    said = {}
    for name in _SIGNED[table]:
        value = fitted(table, name, type_of(table, name) or "string", values.get(name))
        if value not in _NOT_STORED:
            said[name] = value + 0.0 if isinstance(value, float) else value  # -0.0 becomes 0.0
    return hmac.new(key, json.dumps([table, time, machine, said]).encode(), "sha256").hexdigest()


def zoom_key(key: bytes, machine: str) -> bytes:
    """The key of a machine's zoom requests, derived from the detector's: 64 hex digits."""
    return hmac.new(key, b"zoom\0" + machine.encode(), "sha256").hexdigest().encode()


def _needs(table: str, values: Mapping[str, Value]) -> bool:
    return values.get("source") in SOURCES if table == "event" else table in _SIGNED


def _begin(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
    with suppress(FileExistsError):  # another was quicker
        handle = os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "w") as out:
            out.write(secrets.token_hex(_LEAST) + "\n")
            if os.geteuid() == 0:  # the detector, which owns this folder, must read it too
                owner = file.parent.stat()
                os.fchown(handle, owner.st_uid, owner.st_gid)


def key_of(file: Path, create: bool = False) -> bytes:
    """The key in this file, begun with `create` where there is none. Raises StoreError."""
    try:
        if create and not file.exists():
            _begin(file)
        with file.open("rb") as given:
            key = given.read(4096).strip()
    except OSError as error:
        raise StoreError(
            f"the signing key {file} cannot be read: {error.strerror}; give orders as root on the detector's machine, "
            "or name a copy of its key as signing_key_file"
        ) from error
    if len(key) < _LEAST:
        raise StoreError(
            f"{file} is no signing key: it holds less than {_LEAST} bytes; remove it and restart the detector"
        )
    return key
