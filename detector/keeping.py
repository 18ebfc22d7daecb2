"""What the detector remembers, on disk: plain numbers and words, so that reading a file can run nothing."""

from __future__ import annotations

import io
import json
import os
import sys
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detector.config import Config
from detector.rules import RULES, Rule

VERSION = 1
"""Raised when what is kept changes its meaning; other fields than today's are refused by themselves."""
_ROOM = "detector."
_OTHER = "it was kept by another version of the detector"
_PAIRS: dict[str, Callable[[Iterable[Any]], Any]] = {"t": tuple, "l": list, "s": set, "f": frozenset}


class KeptError(ValueError):
    """A kept memory cannot be used; one line with the cause and what to do."""


@dataclass(slots=True)
class _Writer:
    """Arrays aside, the rest as JSON: a value that JSON has no word for becomes [kind, content]."""

    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)
    shapes: dict[str, list[str]] = field(default_factory=dict)
    """Of each class its fields: what they were when this was written."""

    def put(self, value: Any) -> Any:
        """The value in words and numbers of JSON. Raises TypeError for what is no plain data."""
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        if isinstance(value, np.generic):
            return value.item()
        if isinstance(value, np.ndarray):
            return self._array(value)
        if isinstance(value, dict):
            return ["d", [[self.put(key), self.put(item)] for key, item in value.items()]]
        for kind, type_ in _PAIRS.items():
            if type(value) is type_:
                return [kind, [self.put(item) for item in value]]
        return self._object(value)

    def _array(self, value: NDArray[Any]) -> Any:
        if value.dtype == object:
            return ["o", [self.put(item) for item in value]]
        name = f"a{len(self.arrays)}"
        self.arrays[name] = value
        return ["a", name]

    def _object(self, value: Any) -> Any:
        if isinstance(value, Config):
            return ["config", None]
        if isinstance(value, Rule):  # a rule is code; where it stands among the rules tells which
            return ["rule", [value.table, RULES[value.table].index(value)]]
        kind = type(value)
        if not is_dataclass(kind) or not kind.__module__.startswith(_ROOM):
            raise TypeError(f"a {kind.__qualname__} is not plain data and cannot be kept")
        name, names = f"{kind.__module__}:{kind.__qualname__}", [one.name for one in fields(kind)]
        self.shapes[name] = names
        return ["c", [name, [self.put(getattr(value, one)) for one in names]]]


@dataclass(frozen=True, slots=True)
class _Reader:
    """The way back."""

    arrays: Any
    classes: dict[str, tuple[type, list[str]]]
    config: Config

    def get(self, value: Any) -> Any:
        """What `put` was given."""
        if not isinstance(value, list):
            return value
        kind, content = value
        if kind in _PAIRS:
            return _PAIRS[kind](self.get(item) for item in content)
        if kind == "d":
            return {self.get(key): self.get(item) for key, item in content}
        if kind == "a":
            return self.arrays[content]
        if kind == "o":
            out = np.empty(len(content), object)
            out[:] = [self.get(item) for item in content]
            return out
        if kind == "rule":
            return RULES[content[0]][content[1]]
        return self.config if kind == "config" else self._object(*content)

    def _object(self, name: str, values: list[Any]) -> Any:
        kind, names = self.classes[name]
        made: Any = object.__new__(kind)
        for one, value in zip(names, values, strict=True):
            object.__setattr__(made, one, self.get(value))
        return made


def dump(state: Any, at: int) -> bytes:
    """The state after the step at `at` (Unix ns) as an npz archive, arrays unpacked for speed."""
    writer = _Writer()
    text = json.dumps({"version": VERSION, "at": at, "state": writer.put(state), "shapes": writer.shapes})
    out = io.BytesIO()
    np.savez(out, text=np.frombuffer(text.encode(), np.uint8), **writer.arrays)  # type: ignore[arg-type]
    return out.getvalue()


def restore(data: bytes, config: Config) -> tuple[Any, int]:
    """State and time out of `dump`; raises KeptError where it is damaged or another version's."""
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            told = json.loads(archive["text"].tobytes())
            if told["version"] != VERSION:
                raise KeptError(_OTHER)
            reader = _Reader(archive, {name: _class(name, names) for name, names in told["shapes"].items()}, config)
            return reader.get(told["state"]), int(told["at"])
    except (OSError, EOFError, KeyError, IndexError, TypeError, ValueError, zipfile.BadZipFile) as error:
        if isinstance(error, KeptError):
            raise
        raise KeptError("it is damaged") from error


def save(state: Any, at: int, place: Path) -> None:
    """Keep the state; a half-written file never takes the place of a whole one. Raises OSError."""
    new = place.with_name(f"{place.name}.new")
    new.write_bytes(dump(state, at))
    os.replace(new, place)


def load(place: Path, config: Config) -> tuple[Any, int]:
    """What was saved: state and time (Unix ns). Raises KeptError; the file is then of no use to anybody."""
    try:
        return restore(place.read_bytes(), config)
    except KeptError as error:
        raise KeptError(f"{place}: {error}; the detector learns anew") from error
    except OSError as error:
        raise KeptError(f"{place}: {error.strerror}; the detector learns anew") from error


def _class(name: str, names: list[str]) -> tuple[type, list[str]]:
    room, _, kind = name.partition(":")
    found = getattr(sys.modules.get(room), kind, None) if room.startswith(_ROOM) else None
    if not is_dataclass(found) or not isinstance(found, type) or [one.name for one in fields(found)] != names:
        raise KeptError(_OTHER)
    return found, names
