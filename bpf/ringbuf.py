"""A BPF ring buffer read as one numpy array (Documentation/bpf/ringbuf.rst)."""

from __future__ import annotations

import mmap
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bpf.maps import Map

_BUSY, _DISCARDED = 1 << 31, 1 << 30
_HEADER = 8


class Ring:
    """Records of one fixed size. The kernel's side of the memory is mapped read-only."""

    def __init__(self, descriptor: int, dtype: np.dtype[Any]) -> None:
        self.descriptor = descriptor
        self.dtype = dtype
        self._size = Map(descriptor, dtype).capacity
        page = mmap.PAGESIZE
        self._consumer_page = mmap.mmap(descriptor, page, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE, offset=0)
        # The data lie twice in a row behind the producer's page, so that no record is ever cut in two.
        self._kernel_pages = mmap.mmap(descriptor, page + 2 * self._size, mmap.MAP_SHARED, mmap.PROT_READ, offset=page)
        self._consumer = np.frombuffer(self._consumer_page, np.uint64, 1)
        self._producer = np.frombuffer(self._kernel_pages, np.uint64, 1)
        self._step = _HEADER + (dtype.itemsize + 7 & ~7)
        padding = self._step - _HEADER - dtype.itemsize
        record = np.dtype([("length", "<u4"), ("page", "<u4"), ("event", dtype), ("padding", "u1", (padding,))])
        self._record = record

    def drain(self) -> NDArray[Any]:
        """All events up to the first one still being written, in the order in which the kernel took them in."""
        begin, end = int(self._consumer[0]), int(self._producer[0])
        count = (end - begin) // self._step
        if not count:
            return np.empty(0, self.dtype)
        offset = mmap.PAGESIZE + begin % self._size
        records = np.frombuffer(self._kernel_pages, self._record, count, offset)
        busy = records["length"] & _BUSY != 0
        ready = int(np.argmax(busy)) if busy.any() else count
        taken = records[:ready]
        events: NDArray[Any] = taken["event"][taken["length"] & _DISCARDED == 0].copy()
        self._consumer[0] = begin + ready * self._step
        return events

    def close(self) -> None:
        """Let go of the descriptor; the mappings go with this object."""
        os.close(self.descriptor)
