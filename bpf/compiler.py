"""The one place that knows bcc: compiles the probes in a process of its own, writes down what came of it, and leaves.

bcc keeps a compiler of 90 MB in every process that imports it. So a child builds, and its image of programs and maps is
all that is left of it: plain data, from which they can be loaded now and at every later start.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from bpf.btf import VMLINUX, definitions
from bpf.maps import described
from bpf.program import numbered

FOLDER = Path(__file__).parent / "programs"
SHARED = "common.bpf.h"


def source_text(stems: list[str]) -> bytes:
    """One program text of the shared part and the named `.bpf.c` files.

    bcc rewrites map accesses only in the text it is given, not in files that the text includes.
    """
    parts = []
    for name in (SHARED, *(f"{stem}.bpf.c" for stem in stems)):
        text = (FOLDER / name).read_bytes().replace(f'#include "{SHARED}"\n'.encode(), b"\n")
        parts.append(f'#line 1 "{name}"\n'.encode() + text)
    return b"\n".join(parts)


def _import_bcc() -> Any:
    try:
        import bcc
    except ImportError as error:
        raise RuntimeError(
            f"the BPF compiler is missing ({error}): apt-get install python3-bpfcc, "
            "and use a virtual environment that sees system packages"
        ) from None
    if not hasattr(bcc, "BPF"):
        raise RuntimeError(
            f"the bcc found at {bcc.__file__} is another project of that name: "
            "pip uninstall bcc, then apt-get install python3-bpfcc"
        )
    return bcc


def layout(text: bytes) -> tuple[dict[str, int], str]:
    """What the text asks of the kernel's own layout; nothing, and why, where the kernel does not tell it."""
    try:
        return definitions(text, VMLINUX.read_bytes()), ""
    except (OSError, ValueError) as error:
        return {}, f"this kernel does not tell its layout, it was built without CONFIG_DEBUG_INFO_BTF ({error})"


def build(stems: list[str], flags: list[str]) -> dict[str, Any]:
    """The image: instructions in hex, which name maps by their place in `maps`; of each map what it is made of."""
    os.environ["BCC_KERNEL_SOURCE"] = str(FOLDER / "headers")
    bcc = _import_bcc()
    text = source_text(stems)
    places, why = layout(text)
    defined = [f"-D{word}={value}" for word, value in places.items()]
    module = bcc.BPF(text=text, cflags=["-I/usr/include", *flags, *defined])
    lib, handle = bcc.lib, module.module
    # bcc's own binding leaves these two undeclared: a pointer would be cut to 32 bits.
    lib.bpf_num_tables.argtypes, lib.bpf_num_tables.restype = [ctypes.c_void_p], ctypes.c_size_t
    lib.bpf_table_name.argtypes, lib.bpf_table_name.restype = [ctypes.c_void_p, ctypes.c_size_t], ctypes.c_char_p
    tables = [lib.bpf_table_name(handle, index) for index in range(lib.bpf_num_tables(handle))]
    descriptors = [lib.bpf_table_fd(handle, name) for name in tables]
    programs, maps, events = {}, {}, {}
    for name in [lib.bpf_function_name(handle, index) for index in range(lib.bpf_num_functions(handle))]:
        code = ctypes.string_at(lib.bpf_function_start(handle, name), lib.bpf_function_size(handle, name))
        programs[name.decode()] = numbered(code, descriptors).hex()
    for name, descriptor in zip(tables, descriptors, strict=True):
        leaf = lib.bpf_table_leaf_desc(handle, name)
        maps[name.decode()] = described(descriptor), json.loads(leaf) if leaf else None
        fields = lib.bpf_perf_event_fields(handle, name)
        if fields:
            events[name.decode()] = [lib.bpf_perf_event_field(handle, name, i).decode() for i in range(fields)]
    return {"programs": programs, "maps": maps, "events": events, "layout": places, "unknown": why}


def main() -> None:
    """Answer one request from standard input in the file with the number of the first argument."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which may be about to end anyway
    request = json.load(sys.stdin)
    try:
        answer = build(request["stems"], request["flags"])
    except Exception as error:  # whatever bcc raises is an answer to the parent, which can run without probes
        answer = {"error": str(error) or type(error).__name__}
    with open(int(sys.argv[1]), "w") as file:
        json.dump(answer, file)


if __name__ == "__main__":
    main()
