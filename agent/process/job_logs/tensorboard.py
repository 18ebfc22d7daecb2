"""Scalars in TensorBoard event files, read by hand: TFRecord framing, CRC32C, and the few protobuf fields that matter.

Format: https://github.com/tensorflow/tensorflow (core/lib/io/record_writer.h, core/util/event.proto,
core/framework/summary.proto, tensor.proto). A record is a length (8 bytes), its masked CRC32C, the data, and theirs.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

LARGEST = 64 << 10
"""Records above this (images, graphs) are stepped over unread."""
_BEYOND = 1 << 31
_MASK = 0xA282EAD8
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FLOAT, _DOUBLE = 1, 2


@dataclass(frozen=True, slots=True)
class Scalar:
    """One value."""

    tag: str
    step: int
    time: float
    """Unix seconds."""
    value: float


def _table() -> tuple[int, ...]:
    found = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ 0x82F63B78 * (byte & 1)
        found.append(byte)
    return tuple(found)


_CRC = _table()


def masked_crc(data: bytes) -> int:
    """CRC32C (Castagnoli, RFC 3720) of the data, rotated and shifted as record files do."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


class EventReader:
    """Puts pieces of an event file together to records."""

    def __init__(self) -> None:
        self._rest, self._skip = b"", 0

    def restart(self) -> None:
        """Another file begins."""
        self._rest, self._skip = b"", 0

    def feed(self, piece: bytes) -> list[Scalar]:
        """The scalars in the records that are complete now. Raises ValueError where the file is no event file."""
        data, found = self._rest + piece, list[Scalar]()
        while True:
            step = min(self._skip, len(data))
            data, self._skip = data[step:], self._skip - step
            if self._skip or len(data) < 12:
                break
            size, check = struct.unpack_from("<QI", data)
            if masked_crc(data[:8]) != check or size >= _BEYOND:
                raise ValueError("a record's length has a wrong checksum: it is no event file, or damaged")
            if size > LARGEST:
                self._skip = 12 + size + 4
                continue
            if len(data) < 16 + size:
                break
            record = data[12 : 12 + size]
            if masked_crc(record) != struct.unpack_from("<I", data, 12 + size)[0]:
                raise ValueError("a record has a wrong checksum: the file is damaged")
            found += scalars(record)
            data = data[16 + size :]
        self._rest = data
        return found


def scalars(event: bytes) -> list[Scalar]:
    """The scalars of one event. Raises ValueError for what is no protobuf message."""
    time, step, values = 0.0, 0, list[bytes]()
    for field, value in _fields(event):
        if field == 1 and isinstance(value, bytes) and len(value) == 8:
            time = struct.unpack("<d", value)[0]
        elif field == 2 and isinstance(value, int):
            step = value
        elif field == 5 and isinstance(value, bytes):
            values += [one for name, one in _fields(value) if name == 1 and isinstance(one, bytes)]
    found = (_value(one) for one in values)
    return [Scalar(tag, step, time, value) for tag, value in found if value is not None]


def _value(message: bytes) -> tuple[str, float | None]:
    """Tag and value of a Summary.Value; None where it is no scalar."""
    tag, found = "", None
    for field, value in _fields(message):
        if not isinstance(value, bytes):
            continue
        if field == 1:
            tag = value.decode(errors="replace")[:200]
        elif field == 2 and len(value) == 4:
            found = float(struct.unpack("<f", value)[0])
        elif field == 8:
            found = _tensor(value)
    return tag, found


def _tensor(message: bytes) -> float | None:
    """The value of a tensor of one float or double; None for others."""
    kind, content = 0, b""
    for field, value in _fields(message):
        if field == 1 and isinstance(value, int):
            kind = value
        elif field in (4, 5, 6) and isinstance(value, bytes):
            content = value
    form = {(_FLOAT, 4): "<f", (_DOUBLE, 8): "<d"}.get((kind, len(content)))
    return float(struct.unpack(form, content)[0]) if form else None


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field: an integer for a varint, else its bytes."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == _VARINT:
            number, at = _varint(message, at)
            yield key >> 3, number
            continue
        if kind == _BYTES:
            size, at = _varint(message, at)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"a field of the unknown wire type {kind}")
        if at + size > len(message):
            raise ValueError("a field that is longer than its message")
        yield key >> 3, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 64, 7):
        if at >= len(message):
            raise ValueError("a number that is cut off")
        byte = message[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
    raise ValueError("a number of more than 64 bits")
