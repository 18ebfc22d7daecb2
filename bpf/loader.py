"""Programs and maps in the kernel, as the compiler's child left them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bpf.maps import Map, dtype_of_event, dtype_of_leaf
from bpf.ring import Ring

COMPILE_TIMEOUT_S = 60.0
DESCRIPTORS = 250
INITIAL_PID_NAMESPACE = 0xEFFFFFFC
"""Inode of the first PID namespace (include/linux/proc_ns.h, PROC_PID_INIT_INO)."""


class BpfError(OSError):
    """The probes cannot be built or attached; the message names the cause and, where there is one, the mend."""


@dataclass(frozen=True)
class Kernel:
    """What is loaded: program descriptors by function name, and the maps. Nothing is attached yet."""

    programs: dict[str, int]
    maps: dict[str, Map]
    rings: dict[str, Ring]
    layout: dict[str, int] = field(default_factory=dict)
    """What programs asked of the kernel's own layout and it could answer (`bpf.btf.definitions`)."""
    unknown: str = ""
    """Why the kernel does not tell its layout at all."""
    refused: dict[str, str] = field(default_factory=dict)
    """Programs at tracepoints that the kernel did not take, and why."""

    def close(self) -> None:
        """Let go of everything; the kernel frees what nobody else holds."""
        for ring in self.rings.values():
            ring.close()
        for item in self.maps.values():
            item.close()
        for descriptor in self.programs.values():
            os.close(descriptor)


def namespace_flags() -> list[str]:
    """Compiler flags that make the probes number processes as this process's own PID namespace does."""
    status = os.stat("/proc/self/ns/pid")
    if status.st_ino == INITIAL_PID_NAMESPACE:
        return []
    # The kernel compares with its own encoding of the device number (new_encode_dev), which is what st_dev carries.
    return [f"-DPID_NAMESPACE_INODE={status.st_ino}", f"-DPID_NAMESPACE_DEVICE={status.st_dev}"]


def load(stems: Sequence[str]) -> Kernel:
    """Compile `<stem>.bpf.c` for each stem in a child and take over what it loaded.

    Raises BpfError when bcc is missing or another project's, or the kernel refuses.
    """
    if os.uname().machine != "x86_64":
        raise BpfError(f"probes know the calling convention of x86_64 only, and this machine is {os.uname().machine}")
    answer, descriptors, noise = _ask_child({"stems": list(stems), "flags": namespace_flags()})
    if "error" in answer:
        raise BpfError(_explain(answer["error"], noise))
    count = len(answer["programs"])
    programs = dict(zip(answer["programs"], descriptors[:count], strict=True))
    maps, rings = {}, {}
    for (name, leaf), descriptor in zip(answer["maps"].items(), descriptors[count:], strict=True):
        if name in answer["events"]:
            rings[name] = Ring(descriptor, dtype_of_event(answer["events"][name]))
        else:
            maps[name] = Map(descriptor, dtype_of_leaf(leaf) if leaf else np.dtype(np.uint32))
    return Kernel(programs, maps, rings, answer["layout"], answer["unknown"], answer["refused"])


def _ask_child(request: dict[str, Any]) -> tuple[dict[str, Any], list[int], str]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        child = subprocess.Popen(
            [sys.executable, "-I", "-m", "bpf.compiler", str(theirs.fileno())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        ours.settimeout(COMPILE_TIMEOUT_S)
        try:
            assert child.stdin is not None
            child.stdin.write(json.dumps(request).encode())
            child.stdin.close()
            child.stdin = None
            head, descriptors, _, _ = socket.recv_fds(ours, 8, DESCRIPTORS)
            text = b""
            while head and len(text) < int.from_bytes(head, "little"):
                text += ours.recv(1 << 16) or _hung_up()
        except (TimeoutError, BrokenPipeError) as error:
            child.kill()
            head, descriptors, text = b"x", [], json.dumps({"error": f"the BPF compiler died: {error}"}).encode()
        noise = child.communicate()[1].decode(errors="replace")
    if not head:
        return {"error": f"the BPF compiler ended with code {child.returncode}"}, [], noise
    answer: dict[str, Any] = json.loads(text)
    return answer, list(descriptors), noise


def _hung_up() -> bytes:
    raise BrokenPipeError("it hung up in the middle of its answer")


def _explain(error: str, noise: str) -> str:
    both = f"{error}\n{noise}"
    if "not permitted" in both or "Permission denied" in both:
        return "the kernel does not let this process load BPF: run as root or with CAP_BPF and CAP_PERFMON"
    complaint = next((line for line in noise.splitlines() if "error:" in line), "")
    if "Failed to compile" in error and "file not found" in complaint:
        return f"a header for BPF programs is missing: apt-get install linux-libc-dev ({complaint.strip()})"
    return f"{error} ({complaint.strip()})" if complaint else error
