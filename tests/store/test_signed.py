"""Signed stores: a verdict or an order that somebody else has written makes nothing and orders nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from store.schema.contract import Store, StoreError
from store.schema.sample import Batch, Sample
from store.signed import SIGNATURE, UNSIGNED, Marked, Signed, key_of
from store.sqlite.embedded import Embedded
from store.transfer.copy import copy
from tests.servers import ServerProcess
from tests.store.conftest import influx, rows

KEY = bytes(range(40))
VERDICT: dict[str, Any] = {
    "task": "t 1",
    "device": None,
    "kind": "peer",
    "metric": "gpu.power_watts",
    "score": 0.1 + 0.2,
}
VERDICT |= {"since": 1_700_000_000_123_456_789, "level": "crit", "message": 'it says "no",\nand ends = so'}
ORDER: dict[str, Any] = {
    "source": "operator",
    "code": "maintenance",
    "severity": "info",
    "until": 1_700_000_001_987_654_321,
}
TIME = 1_700_000_002_000_000_007


def written() -> list[Batch]:
    """A verdict and an order."""
    return [Batch("m 1", TIME, (Sample("verdict", VERDICT),)), Batch("m,2", TIME + 3, (Sample("event", ORDER),))]


@pytest.fixture(params=["embedded", "influx"])
def unsigned(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """A store without signatures of its own."""
    if request.param == "embedded":
        return Embedded(tmp_path / "s.db")
    server: ServerProcess = request.getfixturevalue("influx_server")
    return influx(f"{server.url}/signed{tmp_path.name[-20:]}", keep_days=36500)


def test_our_own_rows_come_back(unsigned: Store) -> None:
    """What was signed is read, from whatever store and with whichever columns; other rows need no signature."""
    store = Signed(unsigned, KEY)
    xid = Sample("event", {"source": "kernel_log", "code": "xid:79", "message": "fell off the bus"})
    store.write([*written(), Batch("m3", TIME + 5, (xid, Sample("host", {"cpu_utilization_ratio": 0.31})))])
    (verdict,) = rows(store, "verdict")
    assert {name: verdict[name] for name in VERDICT if VERDICT[name] is not None} == {
        name: value for name, value in VERDICT.items() if value is not None
    }
    assert [row["machine"] for row in rows(store, "event")] == ["m,2", "m3"]
    found = store.read("event", columns=("until",))
    assert "until" in found.column_names
    assert SIGNATURE not in found.column_names
    assert (found.num_rows, store.read("host").num_rows, store.refused) == (2, 1, 0)
    store.close()


def forged(of: str) -> list[Batch]:
    """What a forger may write who knows a signed row, but not the key."""
    signer = Signed(listening := Listener(), KEY if of != "another key" else bytes(range(2, 42)))
    signer.write(written())
    (verdict,), (order,) = (batch.samples for batch in listening.batches)
    if of == "no signature":
        return written()
    change: dict[str, dict[str, Any]] = {
        "another machine": {},
        "another time": {},
        "another level": {"level": "ok", "code": "clear"},
        "another score": {"score": 7.5, "until": 5},
        "odd signs": {SIGNATURE: "ÄÖ€"},
        "another key": {},
    }
    machine = "m9" if of == "another machine" else "m 1"
    time = TIME + 11 if of == "another time" else TIME
    given = [(verdict, machine, time), (order, "m7" if of == "another machine" else "m,2", time + 3)]
    return [
        Batch(
            who, when, (Sample(one.table, {**one.values, **{k: v for k, v in change[of].items() if k in one.values}}),)
        )
        for one, who, when in given
    ]


class Listener(Embedded):
    """Remembers what was written to it, in place of a store."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []

    def write(self, batches: Any) -> None:
        """Remember the batches."""
        self.batches += batches


@pytest.mark.parametrize(
    "of",
    ["no signature", "another machine", "another time", "another level", "another score", "another key", "odd signs"],
)
def test_a_forged_row_is_passed_over(of: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A row that was not signed as it stands is not read, and that is said once."""
    unsigned = Embedded(tmp_path / "s.db")
    unsigned.write(forged(of))
    store = Signed(unsigned, KEY)
    assert (rows(store, "verdict"), rows(store, "event"), rows(store, "event")) == ([], [], [])
    assert (store.refused, len(caplog.records)) == (3, 1)
    assert (len(rows(unsigned, "verdict")), len(rows(unsigned, "event"))) == (1, 1)
    store.close()


def test_a_copy_keeps_the_signatures(tmp_path: Path) -> None:
    """Rows that were copied to another store count there under the same key."""
    one, other = Embedded(tmp_path / "one.db"), Embedded(tmp_path / "other.db")
    Signed(one, KEY).write(written())
    copy(one, other, (0, TIME + 100))
    assert [len(rows(Signed(other, KEY), table)) for table in ("verdict", "event")] == [1, 1]
    one.close()
    other.close()


def test_the_key(tmp_path: Path) -> None:
    """It is begun once, for its owner alone; one that is missing or too short is explained in one line."""
    file = tmp_path / "new" / "p.key"
    with pytest.raises(StoreError, match=r"p\.key cannot be read: No such file.*signing_key_file"):
        key_of(file)
    key = key_of(file, create=True)
    assert (len(key), file.stat().st_mode & 0o777) == (64, 0o600)
    assert key_of(file, create=True) == key
    file.write_bytes(b"short\n")
    with pytest.raises(StoreError, match="no signing key"):
        key_of(file)


def test_people_see_what_is_not_signed(unsigned: Store) -> None:
    """Where rows are shown a forged one is there and says so, a signed one is as it was."""
    Signed(unsigned, KEY).write(written())
    unsigned.write([Batch("m9", TIME + 7, (Sample("verdict", {**VERDICT, "message": "forged"}),))])
    shown = Marked(unsigned, KEY)
    assert [row["message"] for row in rows(shown, "verdict")] == [VERDICT["message"], f"{UNSIGNED}forged"]
    assert [row["machine"] for row in rows(Signed(unsigned, KEY), "verdict")] == ["m 1"]
    assert len(rows(shown, "event")) == 1
    unsigned.close()
