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
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from types import FrameType

import pytest

from tests.fuzz.mutation import mutated
from tests.fuzz.readers import READERS, Reader

BLOCKED_S = 300.0
"""The most time for a reader that waits: the machine may be busy."""
GROWN_KB = 400 << 10
SEED = int(os.environ.get("PEERWATCH_FUZZ_SEED", "29"))
LATELY = "PEERWATCH_FUZZ_SECONDS"
_opened: list[str] | None = None


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    if event == "open" and _opened is not None and isinstance(arguments[0], str | bytes):
        _opened.append(os.fsdecode(arguments[0]))


sys.addaudithook(_audit)


@contextmanager
def watched(hang_s: float) -> Iterator[list[str]]:
    """The paths that are opened, and an end to what hangs: it takes more than that CPU time."""
    global _opened

    def hangs(number: int, _frame: FrameType | None) -> None:
        raise AssertionError(
            f"it hangs: {hang_s} s of CPU time" if number == signal.SIGPROF else f"it waits for {BLOCKED_S} s"
        )

    before = [signal.signal(number, hangs) for number in (signal.SIGPROF, signal.SIGALRM)]
    _opened = found = []
    logging.disable()
    signal.setitimer(signal.ITIMER_PROF, hang_s)
    signal.setitimer(signal.ITIMER_REAL, BLOCKED_S)
    try:
        yield found
    finally:
        logging.disable(logging.NOTSET)
        for timer in (signal.ITIMER_PROF, signal.ITIMER_REAL):
            signal.setitimer(timer, 0)
        for number, handler in zip((signal.SIGPROF, signal.SIGALRM), before, strict=True):
            signal.signal(number, handler)
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
    steps = {*folder.parts, ".", *reader.below}
    return [path for path in paths if path not in steps and not os.path.normpath(path).startswith(allowed)]


def fuzz(reader: Reader, folder: Path, seconds: float) -> int:
    """Feed it for so long; returns how often."""
    seeds_folder, own = folder / "seeds", folder / "own"
    seeds_folder.mkdir()
    own.mkdir()
    seeds, chance = list(reader.seeds(seeds_folder)), Random(SEED)
    for seed in seeds:
        with watched(reader.hang_s), suppress(*reader.errors):  # what is whole is not always read in whole
            reader.read(seed, own, chance)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss + GROWN_KB
    count, end = 0, time.monotonic() + seconds
    while time.monotonic() < end or not count:
        data = mutated(chance.choice(seeds), chance)
        try:
            with (
                watched(reader.hang_s) as paths,
                suppress(*reader.errors),
            ):  # to refuse what it cannot read is a right answer
                reader.read(data, own, chance)
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


def spin() -> None:
    """Compute without an end."""
    while True:
        pass


def test_what_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that computes is ended by its CPU time, however busy the machine is, and one that waits by the clock."""
    with pytest.raises(AssertionError, match=r"it hangs: 0\.31 s of CPU time"), watched(0.31):
        spin()
    monkeypatch.setattr("tests.fuzz.test_fuzz.BLOCKED_S", 0.17)
    with pytest.raises(AssertionError, match=r"it waits for 0\.17 s"), watched(5.3):
        time.sleep(60.0)


@pytest.mark.bench
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_fuzz_for_ten_minutes(reader: Reader, tmp_path: Path) -> None:
    """The same for long; prints how many inputs it was."""
    count = fuzz(reader, tmp_path, float(os.environ.get(LATELY, "600")))
    print(f"\nfuzz: {reader.name}: {count} inputs")
