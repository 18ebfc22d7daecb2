"""What is known of ARM64, where nothing here runs: by cross tools, by emulation of its user side, and in bytecode.

The cross tools are Debian's gcc-aarch64-linux-gnu, libc6-dev-arm64-cross and qemu-user-static.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
import types
from pathlib import Path

import numpy as np
import pytest

from agent.binaries.first_instruction import is_stepped
from bpf import loader
from bpf.compiler import FOLDER
from bpf.processor import ARM64, X86_64, Processor

CC, QEMU = "aarch64-linux-gnu-gcc", "qemu-aarch64-static"
cross_tools = pytest.mark.skipif(
    not (shutil.which(CC) and shutil.which(QEMU)),
    reason="needs gcc-aarch64-linux-gnu, libc6-dev-arm64-cross, qemu-user-static",
)
PLACES = {X86_64: (112, 104, 96, 88, 72, 64), ARM64: (0, 8, 16, 24, 32, 40, 48, 56)}
"""Offsets of the registers of arguments in what a probe is handed."""
STACK = {X86_64: 152, ARM64: 248}
ARGUMENTS = {
    "ncclAllReduce": (2, 3, 5),
    "ncclAllGather": (2, 3, 4),
    "ncclReduce": (2, 3, 6),
    "ncclSend": (1, 2, 4),
    "ncclAllToAllv": (7,),
    "ncclPutSignal": (1, 2, 9),
    "ncclCommSplit": (0, 1, 3),
    "ncclCommGrow": (1, 3, 4),
    "cudaMemcpyAsync": (2,),
    "ncclCommGetAsyncError": (0,),
}
"""Places of the arguments that a program reads, from nccl.h and cuda_runtime_api.h."""
UNIQUE_ID = {X86_64: {112, 104, 96, 152}, ARM64: {0, 8, 16, 24}}
"""What ncclCommInitRank reads: the id, 128 bytes by value, lies on the stack, or a copy's address is handed over."""
CAPTURE = """
.global capture
capture:
	adrp x16, seen
	add x16, x16, :lo12:seen
	stp x0, x1, [x16]
	stp x2, x3, [x16, 16]
	stp x4, x5, [x16, 32]
	stp x6, x7, [x16, 48]
	mov x17, sp
	str x17, [x16, 248]
	ret
"""
CALLS = """
#include <stdio.h>
#include <string.h>
#include <stdint.h>
typedef uint64_t u64; typedef uint32_t u32;
#define __always_inline inline __attribute__((always_inline))
#define bpf_probe_read_user(to, size, from) memcpy(to, from, size)
#define REGISTERS_OF_ARM64
%s
struct pt_regs seen;
typedef struct { char internal[128]; } ncclUniqueId;
int init(void *, int, ncclUniqueId, int) __asm__("capture");
int put(void *, size_t, int, int, void *, size_t, int, int, unsigned, void *, void *) __asm__("capture");
int main(void)
{
	ncclUniqueId id = {"as unique as it gets"};
	init((void *)0x7100, 19, id, 13);
	printf("%%lx %%ld %%ld %%d\\n", argument(&seen, 0), argument(&seen, 1), argument(&seen, 3),
		memcmp((void *)argument(&seen, 2), &id, sizeof(id)));
	put((void *)1, 2, 3, 4, (void *)5, 6, 7, 8, 9, (void *)10, (void *)11);
	printf("%%ld %%ld %%d ", argument(&seen, 1), argument(&seen, 2), (int)argument(&seen, 8));
	printf("%%lx\\n", argument(&seen, 9));
}
"""


def context_loads(code: bytes) -> set[int]:
    """Offsets that instructions read from their context, register by register as they are written down."""
    found, context, spilled = set[int](), {1}, set[int]()
    for opcode, registers, offset, _ in struct.iter_unpack("<BBhi", code):
        to, source = registers & 15, registers >> 4
        if opcode in (0x61, 0x69, 0x71, 0x79):  # loads
            if source in context:
                found.add(offset)
            was_context = source == 10 and opcode == 0x79 and offset in spilled
            context = context | {to} if was_context else context - {to}
        elif opcode == 0x7B and to == 10:  # a register is put on the stack
            spilled = spilled | {offset} if source in context else spilled - {offset}
        elif opcode == 0xBF and source in context:
            context = context | {to}
        elif opcode == 0x85:  # a call
            context = context - {0, 1, 2, 3, 4, 5}
        elif opcode & 7 in (0, 4, 7):
            context = context - {to}
    return found


@pytest.mark.bpf
@pytest.mark.parametrize("one", [X86_64, ARM64], ids=lambda one: one.name)
def test_arguments_are_read_from_their_registers(one: Processor, probes_allowed: None) -> None:
    """Compiled for a processor, each program reads the registers in which it is handed the arguments there."""
    image, _ = loader._compile({"stems": ["nccl", "cuda"], "flags": [f"-D{one.flag}"]})
    read = {name: context_loads(bytes.fromhex(code)) for name, code in image["programs"].items()}
    for name, places in ARGUMENTS.items():
        registers = PLACES[one]
        assert read[name] == {registers[place] if place < len(registers) else STACK[one] for place in places}, name
    assert read["ncclCommInitRank"] == UNIQUE_ID[one]
    assert read["ncclGroupStart"] == set()


@cross_tools
def test_arm64_hands_arguments_as_assumed(tmp_path: Path) -> None:
    """A compiler for ARM64 hands arguments where the programs' own text looks for them, the ninth and tenth too."""
    text = (FOLDER / "common.bpf.h").read_text()
    text = text[text.index("#ifdef REGISTERS_OF_ARM64") : text.index("#define NONE")]
    (tmp_path / "calls.c").write_text(CALLS % text)
    (tmp_path / "capture.S").write_text(CAPTURE)
    subprocess.run([CC, "-static", "-O0", "-o", "calls", "calls.c", "capture.S"], cwd=tmp_path, check=True)
    done = subprocess.run([QEMU, tmp_path / "calls"], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["7100", "19", "13", "0", "2", "3", "9", "a"]


@cross_tools
def test_arm64_registers_and_calls_are_the_kernels(tmp_path: Path) -> None:
    """The published headers have the registers at those offsets, and the system calls under those numbers."""
    names = [word for word in ARM64.waits.split() if not word.isdigit()]
    asked = ["offsetof(struct user_pt_regs, regs[7])", "offsetof(struct user_pt_regs, sp)"]
    asked += [f"__NR_{name}" for name in ("bpf", "perf_event_open", "capget", "capset", *names)]
    source = (
        "#include <stddef.h>\n#include <asm/ptrace.h>\n#include <asm/unistd.h>\n#include <stdio.h>\nint main(void) {"
    )
    source += "".join(f'printf("%ld ", (long)({one}));' for one in asked) + "}"
    (tmp_path / "ask.c").write_text(source)
    subprocess.run([CC, "-static", "-o", "ask", "ask.c"], cwd=tmp_path, check=True)
    done = subprocess.run([QEMU, tmp_path / "ask"], capture_output=True, text=True, check=True)
    numbers = [int(word) for word in ARM64.waits.split() if word.isdigit()]
    own = [PLACES[ARM64][7], STACK[ARM64], ARM64.bpf, ARM64.perf_event_open, ARM64.capget, ARM64.capset, *numbers]
    assert list(map(int, done.stdout.split())) == own


def test_arm64_instructions_that_are_emulated() -> None:
    """Branches and what is relative to the program counter are; stores that functions begin with are stepped over."""
    emulated = (0x14000003, 0x97FFFFFE, 0x54000041, 0xB4000040, 0x36080040, 0xD65F03C0, 0x90000010, 0x58000040)
    stepped = (0xA9BF7BFD, 0xD503233F, 0xD503245F, 0xD10083FF, 0xF9400000)  # stp, paciasp, bti c, sub sp, ldr
    words = np.array([*emulated, *stepped], "<u4")
    assert [is_stepped(word.tobytes(), ARM64) for word in words] == [False] * len(emulated) + [True] * len(stepped)
    assert is_stepped(b"\x00\x01", ARM64)


def test_findings_4_5_other_processors_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where arguments lie is known of two processors; elsewhere nothing is loaded, and one line says why."""
    there = types.SimpleNamespace(machine="riscv64")
    monkeypatch.setattr("bpf.processor.os.uname", lambda: there)
    with pytest.raises(loader.BpfError, match="of x86_64 and aarch64 only, and this machine is riscv64"):
        loader.load(["nccl"])
