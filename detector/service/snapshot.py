"""Snapshots of the detector's state on disk: plain data and arrays, so that reading a file executes nothing."""

from __future__ import annotations

import io
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, get_origin

import msgspec
import numpy as np
from numpy.typing import NDArray

from detector.config import Config
from detector.engine.incidents import Incidents
from detector.engine.pipeline import State
from detector.harm.judge import Harm
from detector.methods.evidence.method import Evidence
from detector.methods.evidence.rules import RULES
from detector.methods.peers.groups.clustering import PeerClustering
from detector.methods.peers.method import Peers
from detector.methods.progress.method import Progress
from detector.thresholds.learner import Thresholds
from detector.topology.tasks import Tasks

MOST_BYTES = 1 << 30
"""A larger file is none of ours; nothing of it is read. A thousand machines take some ten megabytes."""
_TESTS = {rule.test.__name__: rule.test for rules in RULES.values() for rule in rules}


class SnapshotError(ValueError):
    """A snapshot cannot be used; one line with the cause."""


class DamagedError(SnapshotError):
    """The file is not what was written."""


@dataclass(slots=True)
class _Stored:
    """The state with its methods by name, so that the type of everything below is known."""

    at: int
    tasks: Tasks
    peers: Peers
    progress: Progress
    evidence: Evidence
    incidents: Incidents
    clustering: PeerClustering
    harm: Harm
    thresholds: Thresholds
    swept: int


# Field names, types and rules of today: a file that was written with others means something else. Addresses of
# functions are left out: they differ in each process.
_FORM = blake2b(re.sub(r" at 0x[0-9a-f]+", "", f"{msgspec.inspect.type_info(_Stored)} {RULES}").encode()).hexdigest()


def dump(state: State, at: int) -> bytes:
    """The state after the step at `at` (Unix ns) as an npz archive. Raises TypeError for what is no plain data."""
    arrays: dict[str, NDArray[Any]] = {}

    def plain(value: Any) -> Any:
        if isinstance(value, np.generic):
            return value.item()
        if isinstance(value, np.ndarray) and value.dtype != object:
            name = f"a{len(arrays)}"
            arrays[name] = value
            return name
        if isinstance(value, np.ndarray):
            return value.tolist()
        name = getattr(value, "__name__", "")
        if _TESTS.get(name) is value:
            return name
        raise TypeError(f"a {type(value).__qualname__} is not plain data and cannot be saved")

    peers, progress, evidence = state.methods
    parts = (state.incidents, state.clustering, state.harm, state.thresholds, state.swept)
    stored = _Stored(at, state.tasks, peers, progress, evidence, *parts)  # type: ignore[arg-type]
    words = msgspec.msgpack.encode(stored, enc_hook=plain)
    out = io.BytesIO()
    np.savez(out, form=np.array(_FORM), words=np.frombuffer(words, np.uint8), **arrays)  # type: ignore[arg-type]
    return out.getvalue()


def restore(data: bytes, config: Config) -> tuple[State, int]:
    """State and time out of `dump`, with today's configuration.

    Raises DamagedError, and SnapshotError where another version has written it.
    """
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            if sum(member.file_size for member in archive.zip.infolist()) > MOST_BYTES:
                raise DamagedError(f"it is damaged: unpacked it is larger than {MOST_BYTES >> 20} MB")
            if "form" not in archive or archive["form"].item() != _FORM:
                raise SnapshotError("it was written by another version of the detector")
            stored = _decoded(archive)
    except SnapshotError:
        raise
    except Exception as error:  # zipfile, numpy and msgspec raise a dozen kinds on bytes that none of them wrote
        raise DamagedError("it is damaged") from error
    for method in (stored.peers, stored.progress, stored.evidence):
        method.config = config
    methods = [stored.peers, stored.progress, stored.evidence]
    parts = (stored.incidents, stored.clustering, stored.harm, stored.thresholds, stored.swept)
    return State(stored.tasks, methods, *parts), stored.at


def _decoded(archive: Any) -> _Stored:
    def made(kind: Any, value: Any) -> Any:
        if (get_origin(kind) or kind) is not np.ndarray:
            return _TESTS[value]
        if isinstance(value, str):
            return archive[value]
        found = np.empty(len(value), object)
        found[:] = value
        return found

    return msgspec.msgpack.decode(archive["words"].tobytes(), type=_Stored, dec_hook=made)


def save(state: State, at: int, place: Path) -> None:
    """Write the state; a half-written file never takes the place of a whole one. Raises OSError."""
    new = place.with_name(f"{place.name}.new")
    new.write_bytes(dump(state, at))
    os.replace(new, place)


def load(place: Path, config: Config) -> tuple[State, int]:
    """Read a snapshot: state and time (Unix ns). Raises SnapshotError; a damaged file was then moved to *.damaged."""
    try:
        if place.stat().st_size > MOST_BYTES or not place.is_file():
            raise DamagedError(f"it is no file of at most {MOST_BYTES >> 20} MB")
        return restore(place.read_bytes(), config)
    except DamagedError as error:
        aside = place.with_name(f"{place.name}.damaged")
        with suppress(OSError):  # a folder that takes no file is reported when the next state is saved
            os.replace(place, aside)
        raise SnapshotError(f"{place}: {error}; it is moved to {aside} and the detector learns again") from error
    except SnapshotError as error:
        raise SnapshotError(f"{place}: {error}; the detector learns again") from error
    except OSError as error:
        raise SnapshotError(f"{place}: {error.strerror}; the detector learns again") from error
