"""No reader crashes, hangs, grows or opens what its input names, whatever it is given.

Seconds each with `make test`, ten minutes each with `make bench ARGS="-k fuzz"`; PEERWATCH_FUZZ_SECONDS sets another
time, PEERWATCH_FUZZ_SEED other mutations.
"""

from __future__ import annotations

import logging
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import FrameType

import pytest

from tests.fuzz.mutation import mutated
from tests.fuzz.readers import READERS, Reader

HANG_S = 10.0
GROWN_KB = 400 << 10
SEED = int(os.environ.get("PEERWATCH_FUZZ_SEED", "29"))
LATELY = "PEERWATCH_FUZZ_SECONDS"
_opened: list[str] | None = None


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    if event == "open" and _opened is not None and isinstance(arguments[0], str | bytes):
        _opened.append(os.fsdecode(arguments[0]))


sys.addaudithook(_audit)


@contextmanager
def watched() -> Iterator[list[str]]:
    """The paths that are opened, and an end to what hangs."""
    global _opened

    def hangs(_number: int, _frame: FrameType | None) -> None:
        raise AssertionError(f"it hangs: more than {HANG_S} s")

    before = signal.signal(signal.SIGALRM, hangs)
    _opened = found = []
    logging.disable()
    signal.setitimer(signal.ITIMER_REAL, HANG_S)
    try:
        yield found
    finally:
        logging.disable(logging.NOTSET)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        _opened = None


def foreign(paths: list[str], folder: Path, reader: Reader) -> list[str]:
    """Paths that are neither the reader's own nor of Python and its libraries."""
    own = (
        str(folder),
        str(folder.resolve()),
        "/proc/self",
        f"/proc/{os.getpid()}",
        sys.prefix,
        sys.base_prefix,
        "/usr/lib/python3",
    )
    allowed = (*own, str(Path(__file__).parents[2]), "/usr/share/zoneinfo", *reader.opens)
    return [path for path in paths if not os.path.normpath(path).startswith(allowed)]


def fuzz(reader: Reader, folder: Path, seconds: float) -> int:
    """Feed it for so long; returns how often."""
    seeds_folder, own = folder / "seeds", folder / "own"
    seeds_folder.mkdir()
    own.mkdir()
    seeds, chance = list(reader.seeds(seeds_folder)), Random(SEED)
    for seed in seeds:
        with watched():
            reader.read(seed, own, chance)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss + GROWN_KB
    count, end = 0, time.monotonic() + seconds
    while time.monotonic() < end or not count:
        data = mutated(chance.choice(seeds), chance)
        try:
            with watched() as paths:
                reader.read(data, own, chance)
        except reader.errors:
            pass  # the reader refuses what it cannot read: that is its right answer
        except BaseException:
            (folder / "input").write_bytes(data)
            raise
        assert foreign(paths, own, reader) == []
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < grown, f"it takes memory, of {len(data)} bytes"
        count += 1
        if len(seeds) < 200 and chance.random() < 0.05:
            seeds.append(data)
    return count


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_a_reader_bears_anything(reader: Reader, tmp_path: Path) -> None:
    """Mutated input ends in an answer or in the reader's own error."""
    fuzz(reader, tmp_path, float(os.environ.get(LATELY, "0.5")))


@pytest.mark.bench
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_fuzz_for_ten_minutes(reader: Reader, tmp_path: Path) -> None:
    """The same for long; prints how many inputs it was."""
    count = fuzz(reader, tmp_path, float(os.environ.get(LATELY, "600")))
    print(f"\nfuzz: {reader.name}: {count} inputs")
