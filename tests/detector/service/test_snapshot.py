"""Snapshots: the state of the detector survives a restart, and no other file is taken for it."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detector.config import Config
from detector.engine.pipeline import Detector, read_rows
from detector.service import snapshot
from detector.service.snapshot import DamagedError, SnapshotError, dump, load, restore, save

SECOND = 10**9


@pytest.fixture
def state(memory: Any, fleet: Callable[..., pa.Table]) -> Any:
    """What a detector remembers of a minute with an event and an odd machine."""
    event = {"source": ["kernel_log"], "code": ["xid:79"], "severity": ["crit"], "device": ["gpu:5"]}
    odd = fleet(steps=61)
    store, detector = (
        memory({"odd": odd, "event": pa.table({"time": odd["time"][:1], "machine": ["m3"], **event})}),
        Detector(),
    )
    start, end = store.span(0)
    for now in range(start, end, SECOND):
        detector.step(now, read_rows(store, now - SECOND, now))
    return detector.state


def test_a_state_is_saved_and_loaded(state: Any, tmp_path: Path) -> None:
    """A saved state is loaded with its time and under the present configuration."""
    save(state, 1234, tmp_path / "state")
    found, at = load(tmp_path / "state", Config(deviation_sigmas=7.5))
    assert at == 1234
    assert found.methods[0].config.deviation_sigmas == 7.5
    assert (found.tasks, found.incidents) == (state.tasks, state.incidents)
    assert len(found.incidents.open) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["state"]


def test_another_version_is_refused(state: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A file of other fields or rules, or of the form before this one, says so in one line and stays where it is."""
    data = dump(state, 5)
    monkeypatch.setattr(snapshot, "_FORM", "another")
    with pytest.raises(SnapshotError, match="another version"):
        restore(data, Config())
    old = io.BytesIO()
    np.savez(old, text=np.arange(7, dtype=np.uint8))
    (tmp_path / "state").write_bytes(old.getvalue())
    with pytest.raises(SnapshotError, match=r"state: it was written by another version.*; the detector learns again"):
        load(tmp_path / "state", Config())
    assert (tmp_path / "state").exists()


def test_no_code_is_made_from_a_file(state: Any) -> None:
    """Objects that only pickle can bring are refused."""
    with np.load(io.BytesIO(dump(state, 5))) as archive:
        parts = dict(archive)
    out = io.BytesIO()
    np.savez(out, **(parts | {"words": np.array([{"at": 1}], object)}))
    with pytest.raises(DamagedError):
        restore(out.getvalue(), Config())


@settings(max_examples=30)
@given(st.binary(max_size=200))
def test_a_damaged_file_is_refused(data: bytes) -> None:
    """Bytes of any kind raise one error, never another."""
    with pytest.raises(DamagedError):
        restore(data, Config())


def test_wrong_bytes_are_refused(state: Any) -> None:
    """Some wrong bytes anywhere, or a part that is missing, give the state or that error, never another."""
    data, chance = dump(state, 5), Random(11)
    places = [at for at in range(len(data)) if data[at : at + 2] == b"PK"]
    refused = 0
    for count in 120 * (1, 3):
        damaged = bytearray(data)
        for _ in range(count):
            at = chance.choice(places) + chance.randrange(60) if chance.random() < 0.7 else chance.randrange(len(data))
            damaged[min(at, len(data) - 1)] = chance.randrange(256)
        try:
            restore(bytes(damaged), Config())
        except SnapshotError:
            refused += 1
    assert refused > 100


def test_a_bomb_is_refused(state: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An archive that is small, but large when it is unpacked, is not unpacked."""
    with np.load(io.BytesIO(dump(state, 5))) as archive:
        parts = dict(archive)
    out = io.BytesIO()
    np.savez_compressed(out, **(parts | {"words": np.zeros(40_000_000, np.uint8)}))
    monkeypatch.setattr(snapshot, "MOST_BYTES", 30_000_000)
    assert len(out.getvalue()) < 30_000_000
    with pytest.raises(DamagedError, match="larger than 28 MB"):
        restore(out.getvalue(), Config())


def test_damaged_files_are_set_aside(state: Any, tmp_path: Path) -> None:
    """A file cut in half and one with two wrong bytes are moved away; the last of several stays."""
    place = tmp_path / "state"
    with pytest.raises(SnapshotError, match=r"state: .*learns again"):
        load(place, Config())
    data = dump(state, 5)
    for broken in (data[: len(data) // 2], data[:-20]):
        place.write_bytes(broken)
        with pytest.raises(SnapshotError, match=r"state: it is damaged; it is moved to .*state.damaged.*learns again"):
            load(place, Config())
        assert [file.name for file in tmp_path.iterdir()] == ["state.damaged"]
        assert (tmp_path / "state.damaged").read_bytes() == broken


def test_what_is_no_plain_data_is_not_saved(state: Any) -> None:
    """An object that is no plain data is a mistake in the program and raises TypeError."""
    state.incidents.quiet_ns = object()
    with pytest.raises(TypeError, match="object"):
        dump(state, 5)
