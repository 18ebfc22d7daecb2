"""The file in which the healthy behaviour of a program is saved, and read back."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from analysis.behaviour.comparison import QUANTILES, History, history_of
from analysis.behaviour.measures import MEASURES, Behaviour

_VERSION = 1


class BaselineError(ValueError):
    """The file cannot be used; the message is one line with the file and the cause."""


class _Measure(msgspec.Struct, forbid_unknown_fields=True):
    quantiles: list[float]
    spread: float


class _Saved(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    program: str
    size: int
    measures: dict[str, _Measure]


def save(behaviour: Behaviour, path: Path) -> None:
    """Write the behaviour as healthy. Raises BaselineError."""
    measures = {
        name: _Measure([float(f"{value:.6g}") for value in one.quantiles], one.spread)
        for name, one in history_of(behaviour).items()
    }
    saved = _Saved(_VERSION, behaviour.program, behaviour.size, measures)
    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(saved), indent=1) + b"\n")
    except OSError as error:
        raise BaselineError(f"{path} cannot be written: {error.strerror}; use another file") from None


def load(path: Path, behaviour: Behaviour) -> dict[str, History]:
    """The healthy behaviour that is comparable with this one. Raises BaselineError where it is of another job."""
    try:
        saved = msgspec.json.decode(path.read_bytes(), type=_Saved)
    except OSError as error:
        raise BaselineError(f"{path} cannot be read: {error.strerror}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BaselineError(f"{path} is no saved behaviour: {str(error).splitlines()[0]}") from None
    if saved.version != _VERSION:
        raise BaselineError(f"{path} is of version {saved.version}, this program reads {_VERSION}: save it again")
    if (saved.size, saved.program) != (behaviour.size, behaviour.program):
        raise BaselineError(
            f"{path} is of another job: {saved.size} ranks (program {saved.program or 'unknown'}), "
            f"not {behaviour.size} ({behaviour.program or 'unknown'}); save one of this program and size"
        )
    found = {}
    for name, one in saved.measures.items():
        if name.split(" of ")[0] not in MEASURES or len(one.quantiles) != len(QUANTILES):
            raise BaselineError(f"{path}: {name[:60]} is no measure that is known: save it again")
        found[name] = History(np.array(one.quantiles), one.spread)
    return found
