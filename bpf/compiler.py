"""The one place that knows bcc: compiles the probes in a process of its own, hands the descriptors over, and leaves.

bcc keeps a compiler of 90 MB in every process that imports it. So a child builds and loads, sends what the kernel gave
it over a Unix socket, and exits; programs and maps live on with whoever holds the descriptors.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
from inspect import signature
from pathlib import Path
from typing import Any

from bpf.btf import VMLINUX, definitions
from bpf.tracepoint import PREFIX, load
from bpf.uprobe import TRACE_UPROBE_MULTI

FOLDER = Path(__file__).parent
SHARED = "thread.bpf.h"


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


def _load_tracepoints(lib: Any, handle: Any, names: list[str], places: dict[str, int]) -> dict[str, int | str]:
    """Descriptors of the programs at tracepoints, or why the kernel refuses one."""
    loaded: dict[str, int | str] = {}
    for name in names:
        code, size = lib.bpf_function_start(handle, name.encode()), lib.bpf_function_size(handle, name.encode())
        try:
            loaded[name] = load(name, code, size, places[f"TYPE_{name.removeprefix(PREFIX)}"])
        except OSError as error:
            loaded[name] = f"{error.strerror}"
    return loaded


def build(stems: list[str], flags: list[str]) -> tuple[dict[str, Any], list[int]]:
    """Compile and load; a description of programs and maps, and their descriptors in the same order."""
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
    names = [lib.bpf_function_name(handle, i).decode() for i in range(lib.bpf_num_functions(handle))]
    kind = {"attach_type": TRACE_UPROBE_MULTI} if "attach_type" in signature(module.load_func).parameters else {}
    probes = [name for name in names if not name.startswith(PREFIX)]
    programs = {name: module.load_func(name.encode(), bcc.BPF.KPROBE, **kind).fd for name in probes}
    points = _load_tracepoints(lib, handle, [name for name in names if name.startswith(PREFIX)], places)
    programs |= {name: found for name, found in points.items() if isinstance(found, int)}
    refused = {name: found for name, found in points.items() if isinstance(found, str)}
    tables, maps, events = [], {}, {}
    for index in range(lib.bpf_num_tables(handle)):
        name = lib.bpf_table_name(handle, index)
        leaf = lib.bpf_table_leaf_desc(handle, name)
        maps[name.decode()] = json.loads(leaf) if leaf else None
        tables.append(lib.bpf_table_fd(handle, name))
        fields = lib.bpf_perf_event_fields(handle, name)
        if fields:
            events[name.decode()] = [lib.bpf_perf_event_field(handle, name, i).decode() for i in range(fields)]
    answer = {"programs": list(programs), "maps": maps, "events": events}
    answer |= {"layout": places, "unknown": why, "refused": refused}
    return answer, [*programs.values(), *tables]


def main() -> None:
    """Answer one request from standard input on the socket whose number is the first argument."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever asked, who may be about to end anyway
    channel = socket.socket(fileno=int(sys.argv[1]))
    request = json.load(sys.stdin)
    try:
        answer, descriptors = build(request["stems"], request["flags"])
    except Exception as error:  # whatever bcc raises is an answer to whoever asked, who may live without probes
        answer, descriptors = {"error": str(error) or type(error).__name__}, []
    text = json.dumps(answer).encode()
    socket.send_fds(channel, [len(text).to_bytes(8, "little")], descriptors)
    channel.sendall(text)
    channel.close()
    # bcc's clean-up at exit would detach and close what was just given away.
    os._exit(0)


if __name__ == "__main__":
    main()
