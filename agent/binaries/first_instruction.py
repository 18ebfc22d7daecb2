"""Whether the kernel emulates the instruction under a probe, or steps over it with a second trap, which costs more.

Source: arch/x86/kernel/uprobes.c (push_setup_xol_ops, branch_setup_xol_ops).
"""

from __future__ import annotations

from collections.abc import Iterable

_EMULATED = frozenset((*range(0x50, 0x58), *range(0x70, 0x80), 0x90, 0xE8, 0xE9, 0xEB))
"""First bytes of push, conditional jump, nop, call and jump."""
_PREFIX = b"\x41"  # of a push of r8 to r15


def is_stepped(code: bytes) -> bool:
    """Whether the kernel steps over the x86-64 instruction that this code begins with."""
    opcode = code.removeprefix(_PREFIX)[:1]
    return not opcode or opcode[0] not in _EMULATED


def stepped_of(data: bytes, offsets: Iterable[int]) -> list[int]:
    """Those offsets of a file at which an instruction is stepped over."""
    return sorted({at for at in offsets if is_stepped(data[at : at + 2])})
