"""Keeping: what the detector remembers survives a restart, and no other file is taken for it."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detector import keeping
from detector.config import Config
from detector.keeping import KeptError, dump, load, restore, save
from detector.pipeline import Detector, read_rows

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
    """What was saved is loaded with its time, and the configuration is today's."""
    save(state, 1234, tmp_path / "kept")
    found, at = load(tmp_path / "kept", Config(sigmas=7.5))
    assert at == 1234
    assert found.methods[0].config.sigmas == 7.5
    assert (found.tasks, found.incidents) == (state.tasks, state.incidents)
    assert len(found.incidents.open) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["kept"]


def test_another_version_is_refused(state: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of another version says so in one line."""
    data = dump(state, 5)
    monkeypatch.setattr(keeping, "VERSION", keeping.VERSION + 1)
    with pytest.raises(KeptError, match="another version"):
        restore(data, Config())


def test_other_fields_are_another_version(state: Any) -> None:
    """Where a class has other fields than when it was kept, nothing is guessed."""
    data = dump(state, 5)
    with np.load(io.BytesIO(data)) as archive:
        parts = dict(archive)
    text = parts["text"].tobytes().replace(b'"cleared"', b'"forgiven"')
    out = io.BytesIO()
    np.savez(out, **(parts | {"text": np.frombuffer(text, np.uint8)}))
    with pytest.raises(KeptError, match="another version"):
        restore(out.getvalue(), Config())


def test_no_code_is_made_from_a_file(state: Any) -> None:
    """Objects that only pickle can bring, and classes that are not the detector's, are refused."""
    out = io.BytesIO()
    np.savez(out, text=np.array([{"version": 1}], object))
    with pytest.raises(KeptError, match="damaged"):
        restore(out.getvalue(), Config())
    with np.load(io.BytesIO(dump(state, 5))) as archive:
        parts = dict(archive)
    text = parts["text"].tobytes().replace(b"detector.tasks:Tasks", b"subprocess:Popen")
    out = io.BytesIO()
    np.savez(out, **(parts | {"text": np.frombuffer(text, np.uint8)}))
    with pytest.raises(KeptError, match="another version"):
        restore(out.getvalue(), Config())


@settings(max_examples=30)
@given(st.binary(max_size=200))
def test_a_damaged_file_is_refused(data: bytes) -> None:
    """Bytes of any kind raise one error, never another."""
    with pytest.raises(KeptError, match="damaged"):
        restore(data, Config())


def test_half_a_file_is_refused_and_a_missing_one_too(state: Any, tmp_path: Path) -> None:
    """The message names the file and what happens now."""
    place = tmp_path / "kept"
    with pytest.raises(KeptError, match=r"kept: No such file.*learns anew"):
        load(place, Config())
    data = dump(state, 5)
    place.write_bytes(data[: len(data) // 2])
    with pytest.raises(KeptError, match=r"kept: it is damaged; the detector learns anew"):
        load(place, Config())


def test_what_is_no_plain_data_is_not_kept() -> None:
    """A thing that cannot be written down is a mistake of ours, and says so."""
    with pytest.raises(TypeError, match="object"):
        dump(object(), 5)
