"""A pool of entries of a kernel array: probes take entries, the agent gives them back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agent.probes.shares import Tally
from bpf.maps import Map


class Pool:
    """An array with its free indices on a stack, and the hash by which probes find the entry of a key."""

    def __init__(self, array: Map, index_of: Map, free: Map, returns: Tally, of_entry: Iterable[Tally] = ()) -> None:
        self._array, self._index_of, self._free = array, index_of, free
        self._returns, self._of_entry = returns, tuple(of_entry)
        for index in range(array.capacity - 1, -1, -1):
            free.update(b"", index.to_bytes(4, "little"))

    def taken(self) -> tuple[NDArray[np.intp], NDArray[Any]]:
        """Indices and a copy of the entries in use: those with a process number."""
        rows = self._array.rows()
        indices = np.flatnonzero(rows["tgid"])
        return indices, rows[indices]

    def give_back(self, index: int, key: bytes | None) -> None:
        """Make the entry free: no probe finds it any more, then it is cleared, then it is up for use.

        Without a key the probes have removed it from the hash already.
        """
        if key is not None:
            self._index_of.delete(key)
        for tally in self._of_entry:
            tally.clear(index)
        self._returns.add(int(self._array.rows()["uid"][index]))
        self._array.update(index.to_bytes(4, "little"), bytes(self._array.value_size))
        self._free.update(b"", index.to_bytes(4, "little"))
