"""Samples of what the first thread of a process was in: read from py-spy's and perf's files, packed into a row.

What is read is under the control of others: the watched process chooses names, others may write to the store.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from agent.stacks.kernel_threads import plain

FILE_BYTES = 256 << 20
MOST_FUNCTIONS, MOST_SAMPLES = 96, 12_000
OTHER = "(other functions)"
_NAME, _DEEP = 160, 24
_CLASSES = (
    ("gc", ("gc.collect", "collect (gc", "gc_collect")),
    ("loader", ("dataloader", "data_loader", "_next_data", "fetch.py")),
    ("checkpoint", ("checkpoint", "state_dict", "serialization.py")),
    ("collective", ("distributed_c10d", "allreduce", "all_reduce", "all_gather", "reduce_scatter", "barrier", "nccl")),
    ("copy", ("copy_", "memcpy", "pin_memory", ".to (")),
    ("wait", ("synchronize", "wait (", "sleep (", "select (", "poll (", "acquire (")),
)
"""Class of a function and words of its stack, innermost frame first; what has none is `python`."""
_RUN = re.compile(r"(\d{1,3})(?:\*(\d{1,5}))?")
_PERF = re.compile(r"\s*(\d+\.\d+):\s+[0-9a-f]+ (.+?)(?:\+0x[0-9a-f]+)? \((.+)\)\s*")


class SampleError(ValueError):
    """Samples cannot be had or read; the message is one line with the cause."""


class _Frame(msgspec.Struct):
    name: str
    file: str = ""


class _Shared(msgspec.Struct):
    frames: list[_Frame]


class _Profile(msgspec.Struct):
    name: str
    samples: list[list[int]] = []
    weights: list[float] = []


class _File(msgspec.Struct):
    shared: _Shared
    profiles: list[_Profile]


@dataclass(frozen=True, slots=True)
class Sampled:
    """Samples of one process, taken at even distances."""

    functions: tuple[tuple[str, str], ...]
    """Class and name, such as `step (train.py)`."""
    seen: tuple[int, ...]
    """The function of each sample, in order of time."""
    seconds: float = 0.0
    """Their time in all, where the file has it."""

    def within(self, first: float, last: float) -> Sampled:
        """The samples between two shares of the time, 0 to 1 each."""
        ends = (round(min(max(share, 0.0), 1.0) * len(self.seen)) for share in (first, last))
        return Sampled(self.functions, self.seen[slice(*ends)])

    def packed(self) -> dict[str, str]:
        """The columns `functions` and `series` of table `profile`; functions that are seldom seen as one."""
        counts = [0] * len(self.functions)
        for number in self.seen:
            counts[number] += 1
        order = sorted(range(len(counts)), key=lambda number: -counts[number])
        often = [number for number in order if counts[number]][:MOST_FUNCTIONS]
        place = {number: at for at, number in enumerate(often)}
        names = [self.functions[number] for number in often]
        names += [("python", OTHER)] * (len(place) < sum(map(bool, counts)))
        runs = itertools.groupby(place.get(number, len(often)) for number in self.seen)
        series = ((number, len([*run])) for number, run in runs)
        return {
            "functions": "\n".join(f"{kind} {name}" for kind, name in names),
            "series": " ".join(f"{number}*{times}" if times > 1 else str(number) for number, times in series),
        }


def unpacked(functions: str, series: str) -> Sampled:
    """The samples of a row. Raises SampleError."""
    names = [tuple(line.partition(" ")[::2]) for line in functions.splitlines()[: MOST_FUNCTIONS + 1]]
    seen: list[int] = []
    for word in series.split(" "):
        run = _RUN.fullmatch(word)
        if not run or int(run[1]) >= len(names) or len(seen) + int(run[2] or 1) > MOST_SAMPLES:
            raise SampleError(f"a row of table profile holds no samples: {plain(word, 24)!r}")
        seen += [int(run[1])] * int(run[2] or 1)
    return Sampled(tuple((plain(kind, 16), plain(name, _NAME)) for kind, name in names), tuple(seen))


def read_speedscope(path: Path) -> Sampled:
    """The main thread's samples in a file of py-spy. Raises SampleError."""
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
    words = [f"{_short(frame.name)} ({_short(frame.file).rpartition('/')[2]})" for frame in found.shared.frames]
    if any(not 0 <= place < len(words) for stack in main.samples for place in stack):
        raise SampleError(f"{path} names a frame that it does not have")
    return _numbered(([words[place] for place in stack] for stack in main.samples), sum(main.weights))


def read_perf(lines: Iterable[str], begin: float, seconds: float, hertz: float) -> Sampled:
    """Samples on a CPU within a window that begins at `begin`, s, from `perf script -F time,ip,sym,dso`.

    Where a thread was not on a CPU it has no sample: those are of the function `(not on a CPU)`.
    """
    names: list[list[str]] = [["(not on a CPU)", "wait ("]] * round(seconds * hertz)
    for line in lines:
        if (found := _PERF.fullmatch(line)) and 0 <= (at := (float(found[1]) - begin) * hertz) < len(names):
            names[int(at)] = [f"{_short(found[2])} ({_short(found[3]).rpartition('/')[2]})"]
    return _numbered(stack[::-1] for stack in names)


def _numbered(stacks: Iterable[Sequence[str]], seconds: float = 0.0) -> Sampled:
    """Samples of stacks, the outermost frame first: of the innermost function, its class from the whole stack."""
    numbers: dict[str, int] = {}
    kinds: list[str] = []
    known: dict[tuple[str, ...], int] = {}
    seen = []
    for stack in stacks:
        key = tuple(stack)
        if key not in known:
            known[key] = numbers.setdefault(key[-1] if key else "(no frame)", len(numbers))
            if known[key] == len(kinds):
                kinds.append(_class(key))
        seen.append(known[key])
    return Sampled(tuple(zip(kinds, numbers, strict=True)), tuple(seen), seconds)


def _class(stack: Sequence[str]) -> str:
    text = " ".join(reversed(stack[-_DEEP:])).lower()
    return next((kind for kind, signs in _CLASSES if any(sign in text for sign in signs)), "python")


def _short(text: str) -> str:
    return plain(text[-_NAME:], _NAME)
