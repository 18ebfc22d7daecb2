"""TensorBoard event files: records, checksums and the fields of scalars, written here by hand."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.process.job_logs.tensorboard import LARGEST, EventReader, Scalar, masked_crc, scalars


def varint(number: int) -> bytes:
    """A protobuf varint."""
    out = b""
    while number > 0x7F:
        out, number = out + bytes([number & 0x7F | 0x80]), number >> 7
    return out + bytes([number])


def field(number: int, content: bytes) -> bytes:
    """A length-delimited field."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def event(tag: str, value: float, step: int, time: float, tensor: bool = False) -> bytes:
    """An event with one scalar, as torch writes it, or as TensorFlow 2 does."""
    content = struct.pack("<f", value)
    simple = varint(2 << 3 | 5) + content
    packed = field(8, varint(1 << 3) + varint(1) + field(4, content))
    message = field(1, tag.encode()) + (packed if tensor else simple)
    return struct.pack("<Bd", 1 << 3 | 1, time) + varint(2 << 3) + varint(step) + field(5, field(1, message))


def record(data: bytes) -> bytes:
    """A record of a TFRecord file."""
    size = struct.pack("<Q", len(data))
    return size + struct.pack("<I", masked_crc(size)) + data + struct.pack("<I", masked_crc(data))


def test_the_checksum_is_castagnolis() -> None:
    """CRC32C of "123456789" is E3069283 (RFC 3720, appendix B.4 has the polynomial), then masked."""
    crc = 0xE3069283
    assert masked_crc(b"123456789") == ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


@given(st.lists(st.integers(1, 60), max_size=40))
def test_records_come_in_pieces(cuts: list[int]) -> None:
    """However a file is cut into pieces, its scalars come once each, in order, images stepped over."""
    wanted = [Scalar("train/loss", 3, 1.5e9, 2.25), Scalar("train/grad_norm", 4, 1.5e9 + 7, 0.5)]
    data = record(b"\x09" + bytes(8) + field(3, b"brain.Event:2")) + record(event("train/loss", 2.25, 3, 1.5e9))
    data += record(bytes(LARGEST + 11)) + record(event("train/grad_norm", 0.5, 4, 1.5e9 + 7, tensor=True))
    reader, found = EventReader(), list[Scalar]()
    for cut in cuts:
        piece, data = data[: cut * 97], data[cut * 97 :]
        found += reader.feed(piece)
    assert found + reader.feed(data) == wanted


@pytest.mark.parametrize("at", [0, 9, 20, -1])
def test_damage_is_seen(at: int) -> None:
    """A flipped bit in length, checksum or data is an error, never a value."""
    data = bytearray(record(event("loss", 1.25, 5, 1e9)))
    data[at] ^= 0x10
    with pytest.raises(ValueError, match="checksum"):
        EventReader().feed(bytes(data))


@given(st.binary(max_size=200))
def test_whatever_comes_is_refused_or_read(data: bytes) -> None:
    """Bytes that are no message raise ValueError and nothing else."""
    try:
        scalars(data)
    except ValueError:
        return
