"""Mutations of bytes: flipped, cut, doubled; numbers at the bounds of their types, tokens that parsers trip over."""

from __future__ import annotations

import struct
from random import Random

TOKENS = (
    *(b"\0", b"\n", b"\x1b[31m", b"\x1b]0;x\x07", b'"', b"\\", b",", b" ", b"=", b";", b"-1", b"9" * 400),
    *(b"1e999", b"NaN", b"Infinity", b"null", b"true", b"{}", b"[]", b"[" * 3000, b"{" * 3000, b"\xff\xfe"),
    *(b"(deleted)", "😀".encode(), b"\xc1", b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff"),
    *(b"../../../etc/shadow", b"/dev/zero"),
)
_WORDS = (0, 1, 0xFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 2**63, 2**64 - 1)
MOST = 4 << 20


def mutated(data: bytes, chance: Random) -> bytes:
    """The data with one to some dozens of changes, at most MOST bytes."""
    found = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 4, 16, 64))):
        at, kind = chance.randrange(len(found) + 1), chance.random()
        if kind < 0.3 and found:
            found[at - 1] = chance.randrange(256)
        elif kind < 0.5:
            size = chance.choice((2, 4, 8))
            found[at : at + size] = struct.pack("<Q", chance.choice((*_WORDS, len(found), chance.getrandbits(64))))[
                :size
            ]
        elif kind < 0.7:
            found[at:at] = chance.choice(TOKENS)
        elif kind < 0.8:
            del found[at : at + chance.randrange(1, 40)]
        elif kind < 0.92 and found:
            begin = chance.randrange(len(found))
            found[at:at] = found[begin : begin + chance.randrange(1, 80)] * chance.choice((1, 1, 2, 50))
        elif kind < 0.95:
            del found[at:]
    return bytes(found[:MOST])
