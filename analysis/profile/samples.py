"""Samples of what the main thread of each process was in, from py-spy's speedscope files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from detector.stats.arrays import Ints

FILE_BYTES = 256 << 20
_NAME = 160
_CLASSES = (
    ("gc", ("gc.collect", "collect (gc", "gc_collect")),
    ("loader", ("dataloader", "data_loader", "_next_data", "fetch.py")),
    ("checkpoint", ("checkpoint", "state_dict", "serialization.py")),
    ("collective", ("distributed_c10d", "allreduce", "all_reduce", "all_gather", "reduce_scatter", "barrier", "nccl")),
    ("copy", ("copy_", "memcpy", "pin_memory", ".to (")),
    ("wait", ("synchronize", "wait (", "sleep (", "select (", "poll (", "acquire (")),
)
"""Class of a function and words of its stack, innermost frame first; what has none is `python`."""


class SampleError(ValueError):
    """A file of samples cannot be read; the message is one line with the file and the cause."""


class _Frame(msgspec.Struct):
    name: str
    file: str = ""


class _Shared(msgspec.Struct):
    frames: list[_Frame]


class _Profile(msgspec.Struct):
    name: str
    samples: list[list[int]] = []


class _File(msgspec.Struct):
    shared: _Shared
    profiles: list[_Profile]


@dataclass(frozen=True, slots=True)
class Samples:
    """Samples of one window over all ranks, taken at even distances."""

    ranks: tuple[str, ...]
    functions: tuple[str, ...]
    """Such as `step (train.py)`."""
    classes: tuple[str, ...]
    """[function]"""
    seen: tuple[Ints, ...]
    """[rank][sample]: the function, in order of time."""
    seconds: float
    """Length of the window."""


def read_samples(files: dict[str, Path], seconds: float) -> Samples:
    """Samples of ranks, named by the keys, from a speedscope file each. Raises SampleError."""
    functions: dict[str, int] = {}
    classes: dict[int, str] = {}
    seen = [_of_file(path, functions, classes) for path in files.values()]
    return Samples(
        tuple(files), tuple(functions), tuple(classes[at] for at in range(len(functions))), tuple(seen), seconds
    )


def _of_file(path: Path, functions: dict[str, int], classes: dict[int, str]) -> Ints:
    """[sample]: the function that the main thread was in."""
    try:
        with open(path, "rb") as stream:
            data = stream.read(FILE_BYTES + 1)
        if len(data) > FILE_BYTES:
            raise SampleError(f"{path} is longer than {FILE_BYTES >> 20} MB: sample for a shorter time")
        found = msgspec.json.decode(data, type=_File)
    except OSError as error:
        raise SampleError(f"{path} cannot be read: {error.strerror}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise SampleError(f"{path} holds no samples of py-spy (speedscope): {str(error).splitlines()[0]}") from None
    threads = [one for one in found.profiles if one.samples]
    if not threads:
        raise SampleError(f"{path} holds no sample: the process ended, or may not be read")
    main = next((one for one in threads if "MainThread" in one.name), max(threads, key=lambda one: len(one.samples)))
    frames = found.shared.frames
    words = [f"{frame.name[:_NAME]} ({frame.file[-_NAME:].rpartition('/')[2]})" for frame in frames]
    numbers: dict[tuple[int, ...], int] = {}
    out = np.empty(len(main.samples), np.int64)
    for at, stack in enumerate(main.samples):
        key = tuple(stack)
        if key not in numbers:
            if any(not 0 <= place < len(frames) for place in key):
                raise SampleError(f"{path} names a frame that it does not have")
            numbers[key] = _function([words[place] for place in key], functions, classes)
        out[at] = numbers[key]
    return out


def _function(stack: list[str], functions: dict[str, int], classes: dict[int, str]) -> int:
    """The number of the innermost function of a stack, the outermost frame first; its class from the whole stack."""
    name = stack[-1] if stack else "(no frame)"
    number = functions.setdefault(name, len(functions))
    text = " ".join(reversed(stack[-24:])).lower()
    classes.setdefault(
        number, next((kind for kind, signs in _CLASSES if any(sign in text for sign in signs)), "python")
    )
    return number
