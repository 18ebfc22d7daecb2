"""BPF maps as numpy sees them: arrays mapped into memory, the rest by system call."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bpf.processor import OURS

_libc = ctypes.CDLL(None, use_errno=True)
_CREATE, _UPDATE, _DELETE, _INFO, _LOOKUP_AND_DELETE = 0, 2, 3, 15, 21  # enum bpf_cmd (include/uapi/linux/bpf.h)

# What bcc calls the C types (src/cc/json_map_decl_visitor.cc gives canonical names).
_TYPES = {
    "unsigned long long": "<u8",
    "unsigned long": "<u8",
    "long long": "<i8",
    "long": "<i8",
    "unsigned int": "<u4",
    "int": "<i4",
    "unsigned short": "<u2",
    "unsigned char": "u1",
    "u64": "<u8",
    "s64": "<i8",
    "u32": "<u4",
    "s32": "<i4",
    "u8": "u1",
}


def dtype_of_leaf(description: Any) -> np.dtype[Any]:
    """The dtype of a map's value from bcc's description: a type name, or [name, fields, "struct"]."""
    if isinstance(description, str):
        return np.dtype(_TYPES[description])
    fields: list[Any] = []
    for name, kind, *length in description[1]:
        shape = tuple(length[0]) if length and isinstance(length[0], list) else ()
        fields.append((name, dtype_of_leaf(kind), shape))
    return np.dtype(fields)


def dtype_of_event(fields: list[str]) -> np.dtype[Any]:
    """The dtype of a ring's event from bcc's `name#type` list; arrays are written `type[length]`."""
    columns: list[Any] = []
    for field in fields:
        name, kind = field.split("#", 1)
        base, length = re.fullmatch(r"([^\[]+?)\s*(?:\[(\d+)\])?", kind).groups()  # type: ignore[union-attr]
        columns.append((name, _TYPES[base], (int(length),) if length else ()))
    return np.dtype(columns)


def bpf(command: int, attributes: bytes) -> int:
    """The bpf system call (bpf(2)). Raises OSError."""
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    result: int = _libc.syscall(OURS.bpf, command, buffer, len(attributes))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def described(descriptor: int) -> tuple[int, ...]:
    """What a map was made of: type, bytes of a key, bytes of a value, entries, flags. Raises OSError."""
    info = np.zeros(20, np.uint32)  # struct bpf_map_info: type, id, then the rest of these
    bpf(_INFO, np.array([descriptor, info.nbytes], np.uint32).tobytes() + _words(info.ctypes.data))
    kind, _, *sizes = info[:6].tolist()
    return kind, *sizes


def create(description: Sequence[int]) -> int:
    """A new map like one that was `described`; its descriptor. Raises OSError."""
    return bpf(_CREATE, np.array(description, np.uint32).tobytes())


def _words(*values: int) -> bytes:
    return np.array(values, np.uint64).tobytes()


class Map:
    """One map: `rows()` where it is a mapped array, and changes by key."""

    def __init__(self, descriptor: int, dtype: np.dtype[Any]) -> None:
        self.descriptor = descriptor
        self.dtype = dtype
        _, self.key_size, self.value_size, self.capacity, _ = described(descriptor)
        self._mapping: mmap.mmap | None = None

    def rows(self) -> NDArray[Any]:
        """The array as the kernel sees it now, [capacity], read-only, by no system call. Copy before you compute."""
        if self._mapping is None:
            stride = (self.value_size + 7) & ~7
            if stride != self.dtype.itemsize:
                raise ValueError(f"a map's entry has {stride} bytes and its dtype {self.dtype.itemsize}")
            size = -(-stride * self.capacity // mmap.PAGESIZE) * mmap.PAGESIZE
            self._mapping = mmap.mmap(self.descriptor, size, mmap.MAP_SHARED, mmap.PROT_READ)
        return np.frombuffer(self._mapping, self.dtype, self.capacity)

    def update(self, key: bytes, value: bytes) -> None:
        """Set one entry; an empty key pushes on a stack or queue. Raises OSError when the map is full."""
        key_buffer, value_buffer = ctypes.create_string_buffer(key or b"\0"), ctypes.create_string_buffer(value)
        key_address = ctypes.addressof(key_buffer) if key else 0
        bpf(_UPDATE, _words(self.descriptor, key_address, ctypes.addressof(value_buffer), 0))

    def delete(self, key: bytes) -> bool:
        """Remove one entry; False when there was none."""
        buffer = ctypes.create_string_buffer(key, len(key))
        try:
            bpf(_DELETE, _words(self.descriptor, ctypes.addressof(buffer)))
        except FileNotFoundError:
            return False
        return True

    def pop(self) -> bytes:
        """Take the top of a stack. Raises KeyError when it is empty."""
        value = ctypes.create_string_buffer(self.value_size)
        try:
            bpf(_LOOKUP_AND_DELETE, _words(self.descriptor, 0, ctypes.addressof(value), 0))
        except FileNotFoundError:
            raise KeyError("the stack is empty") from None
        return value.raw

    def close(self) -> None:
        """Close the descriptor; the mapping ends with the last array that refers to it."""
        self._mapping = None
        os.close(self.descriptor)
