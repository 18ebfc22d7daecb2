"""Where the kernel keeps its fields is read from what it tells of itself, and from nothing that is broken."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bpf.btf import VMLINUX, definitions

STRUCT, UNION, TYPEDEF, POINTER, FUNCTION = 4, 5, 8, 2, 13


class Blob:
    """Writes the format (Documentation/bpf/btf.rst)."""

    def __init__(self) -> None:
        self.strings, self.types = b"\0", b""

    def name(self, word: str) -> int:
        """Where the word stands; 0 for none."""
        if not word:
            return 0
        at = len(self.strings)
        self.strings += word.encode() + b"\0"
        return at

    def add(self, kind: int, name: str, size_or_type: int, tail: list[int], count: int = 0, flag: int = 0) -> None:
        """One type."""
        words = (self.name(name), flag << 31 | kind << 24 | count, size_or_type, *tail)
        self.types += struct.pack(f"<{len(words)}I", *words)

    def structure(self, kind: int, name: str, size: int, members: list[tuple[str, int, int]], flag: int = 0) -> None:
        """A structure or union; members are a name, a type and where they are."""
        tail = [word for member, of, at in members for word in (self.name(member), of, at)]
        self.add(kind, name, size, tail, len(members), flag)

    def bytes(self) -> bytes:
        """All of it."""
        sizes = (0, len(self.types), len(self.types), len(self.strings))
        return struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, *sizes) + self.types + self.strings


def sample() -> Blob:
    """An int, a union without a name in a structure, bit fields, and a tracepoint of three arguments."""
    blob = Blob()
    blob.add(1, "int", 4, [32])  # 1
    blob.structure(UNION, "", 8, [("low", 1, 0), ("high", 1, 32)])  # 2
    blob.structure(STRUCT, "task", 72, [("pid", 1, 96), ("", 2, 192), ("number", 1, 320)])  # 3
    blob.structure(STRUCT, "marks", 8, [("plain", 1, 0), ("second", 1, 1 << 24 | 41)], flag=1)  # 4
    blob.add(3, "", 0, [1, 1, 7])  # 5: an array
    blob.add(FUNCTION, "", 0, [0, 1, 0, 3, 0, 1, 0, 1], 4)  # 6
    blob.add(POINTER, "", 6, [])  # 7
    blob.add(TYPEDEF, "btf_trace_wakes", 7, [])  # 8
    blob.structure(STRUCT, "task", 11, [("pid", 1, 8)])  # 9: another one of that name
    return blob


TEXT = b"""
a OFFSET_task__pid b(OFFSET_task__high) OFFSET_task__number, SIZE_task BIT_marks__second BIT_marks__plain
ARGUMENTS_wakes TYPE_wakes TYPE_sleeps ARGUMENTS_sleeps OFFSET_task__gone OFFSET_nothing__pid SIZE_nothing
MY_OFFSET_task__pid2
"""


def test_what_a_text_asks_for() -> None:
    """Offsets in bytes, bits, sizes and tracepoints are answered; what this kernel lacks is left out."""
    assert definitions(TEXT, sample().bytes()) == {
        "OFFSET_task__pid": 12,
        "OFFSET_task__high": 28,
        "OFFSET_task__number": 40,
        "SIZE_task": 72,
        "BIT_marks__second": 41,
        "BIT_marks__plain": 0,
        "ARGUMENTS_wakes": 3,
        "TYPE_wakes": 8,
    }


def test_structures_that_hold_themselves() -> None:
    """A structure that is its own member without a name, which no compiler makes, ends the search."""
    blob = Blob()
    blob.structure(STRUCT, "task", 8, [("", 1, 0)])
    assert definitions(b"OFFSET_task__pid", blob.bytes()) == {}


@pytest.mark.parametrize("cut", [10, 30, 100])
def test_cut_off(cut: int) -> None:
    """What ends too early is refused, not guessed at."""
    with pytest.raises(ValueError, match="BTF"):
        definitions(TEXT, sample().bytes()[:-cut])


def answer(blob: bytes) -> dict[str, int]:
    """What a blob answers; nothing where it is refused."""
    try:
        return definitions(TEXT, blob)
    except ValueError as error:
        if not str(error).startswith("BTF"):
            raise
        return {}


@given(st.binary(max_size=400))
def test_noise(noise: bytes) -> None:
    """Any bytes at all are refused or read, and nothing else happens."""
    header = struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(noise) & ~3, 0, len(noise))
    for blob in (noise, header + noise):
        answer(blob)


def words_changed(data: bytes, at: int, word: int) -> bytes:
    """The data with one of its words replaced."""
    at = at % (len(data) // 4) * 4
    return data[:at] + struct.pack("<I", word) + data[at + 4 :]


@given(st.integers(0, 1000), st.integers(0, 2**32 - 1))
def test_one_wrong_word(at: int, word: int) -> None:
    """A blob of which one word is wrong is refused or read."""
    assert all(value >= 0 for value in answer(words_changed(sample().bytes(), at, word)).values())


@pytest.mark.skipif(not VMLINUX.exists(), reason="this kernel does not tell its layout")
def test_this_kernel() -> None:
    """The running kernel has tasks with numbers, and switches between them."""
    found = definitions(b"OFFSET_task_struct__pid OFFSET_task_struct__tgid TYPE_sched_switch", VMLINUX.read_bytes())
    assert found["OFFSET_task_struct__tgid"] == found["OFFSET_task_struct__pid"] + 4
    assert found["TYPE_sched_switch"] > 0
