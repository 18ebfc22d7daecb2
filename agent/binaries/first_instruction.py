"""Whether the kernel emulates the instruction under a probe, or steps over it with a second trap, which costs more.

Source: arch/x86/kernel/uprobes.c (push_setup_xol_ops, branch_setup_xol_ops), and for ARM64
arch/arm64/kernel/probes/decode-insn.c (INSN_GOOD_NO_SLOT).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from bpf.processor import ARM64, OURS, Processor

_EMULATED = frozenset((*range(0x50, 0x58), *range(0x70, 0x80), 0x90, 0xE8, 0xE9, 0xEB))
"""First bytes of push, conditional jump, nop, call and jump."""
_PREFIX = b"\x41"  # of a push of r8 to r15
_EMULATED_ARM64 = (
    (0x7C000000, 0x14000000),  # b, bl
    (0xFE000000, 0x54000000),  # b.cond
    (0x7C000000, 0x34000000),  # cbz, cbnz, tbz, tbnz
    (0xFE000000, 0xD6000000),  # br, blr, ret
    (0x1F000000, 0x10000000),  # adr, adrp
    (0x3B000000, 0x18000000),  # ldr of a literal
)
"""Mask and value."""
LONGEST = 4
"""Bytes of an instruction that tell."""


def is_stepped(code: bytes, processor: Processor = OURS) -> bool:
    """Whether the kernel of that processor steps over the instruction that this code begins with."""
    if processor is ARM64:
        word = struct.unpack("<I", code[:4])[0] if len(code) >= LONGEST else 0
        return not any(word & mask == value for mask, value in _EMULATED_ARM64)
    opcode = code.removeprefix(_PREFIX)[:1]
    return not opcode or opcode[0] not in _EMULATED


def stepped_of(data: bytes, offsets: Iterable[int]) -> list[int]:
    """Those offsets of a file at which an instruction is stepped over."""
    return sorted({at for at in offsets if is_stepped(data[at : at + LONGEST])})
