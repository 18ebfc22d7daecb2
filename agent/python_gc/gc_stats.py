"""How often a CPython collected garbage, read out of its own memory: for builds that no probe finds anything in.

From 3.8 to 3.13 the collector's state (struct _gc_runtime_state, Include/internal/pycore_gc.h or pycore_interp.h) holds
three generations of 24 bytes, then a pointer to the first of them, one generation more, and three times the numbers of
collections, of objects collected and of objects that could not be. That pointer gives the state away wherever a version
keeps it: it points 72 bytes before itself. Since 3.14 there is none, and nothing is found.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from agent.process.memory import Memory

RUNTIME_BYTES = 4 << 20
_GENERATIONS = 9  # words
_STATISTICS = 13  # words from the beginning of the generations
_STATE = _STATISTICS + 9
_INTERPRETER_BYTES = 4096
_POINTERS = 64
_COLLECTIONS = 1 << 40
_THRESHOLD = 1 << 31


def find_statistics(memory: Memory, address: int, size: int) -> int | None:
    """Address of the statistics in a process, from where its _PyRuntime lies; None: no such thing there.

    The state lies in _PyRuntime itself, or (3.9 and 3.10) near the beginning of what it points to.
    """
    if not 0 < size <= RUNTIME_BYTES:
        return None
    runtime = _words(memory.read(address, size & ~7))
    pointers = [pointer for pointer in runtime[:_POINTERS].tolist() if pointer % 16 == 0]
    found = (_statistics(start, _words(memory.read(start, _INTERPRETER_BYTES))) for start in pointers)
    return next((place for place in (_statistics(address, runtime), *found) if place is not None), None)


def count_collections(memory: Memory, statistics: int) -> int | None:
    """How many collections the process has had in all; None where it cannot be read, or cannot be true."""
    counts = _words(memory.read(statistics, 72))[::3]
    return int(counts.sum()) if counts.size and (counts < _COLLECTIONS).all() else None


def _words(data: bytes | None) -> NDArray[np.uint64]:
    return np.frombuffer(data or b"", "<u8")


def _statistics(start: int, words: NDArray[np.uint64]) -> int | None:
    if len(words) < _STATE:
        return None
    own = np.uint64(start) + np.arange(len(words), dtype=np.uint64) * np.uint64(8)
    for first in np.flatnonzero(words[_GENERATIONS:] == own[:-_GENERATIONS]).tolist():
        state = words[first : first + _STATE]
        thresholds = state[2:_GENERATIONS:3] & np.uint64(0xFFFFFFFF)
        if len(state) == _STATE and (thresholds < _THRESHOLD).all() and (state[_STATISTICS::3] < _COLLECTIONS).all():
            return start + (first + _STATISTICS) * 8
    return None
