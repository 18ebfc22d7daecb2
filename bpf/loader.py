"""Programs and maps in the kernel, from an image that the compiler's child made now or at an earlier start."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from bpf.maps import Map, create, dtype_of_event, dtype_of_leaf
from bpf.processor import KNOWN, here
from bpf.program import PROBE, TRACEPOINT
from bpf.program import load as load_program
from bpf.ringbuf import Ring
from bpf.tracepoint import PREFIX

COMPILE_TIMEOUT_S = 60.0
INITIAL_PID_NAMESPACE = 0xEFFFFFFC
"""Inode of the first PID namespace (include/linux/proc_ns.h, PROC_PID_INIT_INO)."""
FOLDER = Path(__file__).parent / "programs"


class BpfError(OSError):
    """The probes cannot be built or attached; the message names the cause and, where there is one, the mend."""


class Keeper(Protocol):
    """A cache of images, out of reach of other users: the kernel runs what it holds."""

    def find(self, key: str) -> bytes | None:
        """The image under that key."""

    def keep(self, key: str, data: bytes) -> None:
        """Keep it, if that can be done."""


@dataclass(frozen=True)
class Kernel:
    """What is loaded: program descriptors by function name, and the maps. Nothing is attached yet."""

    programs: dict[str, int] = field(default_factory=dict)
    maps: dict[str, Map] = field(default_factory=dict)
    rings: dict[str, Ring] = field(default_factory=dict)
    layout: dict[str, int] = field(default_factory=dict)
    """What programs asked of the kernel's own layout and it could answer (`bpf.btf.definitions`)."""
    unknown: str = ""
    """Why the kernel does not tell its layout at all."""
    refused: dict[str, str] = field(default_factory=dict)
    """Programs at tracepoints that the kernel did not take, and why."""

    def close(self) -> None:
        """Close every descriptor; the kernel frees what no other process holds."""
        for ring in self.rings.values():
            ring.close()
        for item in self.maps.values():
            item.close()
        for descriptor in self.programs.values():
            os.close(descriptor)


def load(stems: Sequence[str], keeper: Keeper | None = None) -> Kernel:
    """Load `<stem>.bpf.c` for each stem, compiled in a child where no image of just these is cached.

    Raises BpfError when bcc is missing or another project's, or the kernel refuses.
    """
    processor = here()
    if processor is None:
        names = " and ".join(KNOWN)
        raise BpfError(f"probes know the calling conventions of {names} only, and this machine is {os.uname().machine}")
    namespace = os.stat("/proc/self/ns/pid")
    own_namespace = namespace.st_ino != INITIAL_PID_NAMESPACE
    flags = [f"-D{processor.flag}", *["-DPID_NAMESPACE"] * own_namespace]
    request = {"stems": list(stems), "flags": flags}
    key = _key(request)
    image = _read(keeper.find(key)) if keeper is not None else None
    if image is None:
        image, data = _compile(request)
        if keeper is not None:
            keeper.keep(key, data)
    # Kernels before 5.11 count maps as locked memory.
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    kernel = Kernel(layout=image["layout"], unknown=image["unknown"])
    try:
        _fill(kernel, image)
    except OSError as error:
        kernel.close()
        raise BpfError(_explain(str(error))) from error
    if own_namespace:
        # The kernel compares with its own encoding of the device number (new_encode_dev), which is what st_dev carries.
        own = np.array([namespace.st_dev, namespace.st_ino], np.uint64).tobytes()
        kernel.maps["own_namespaces"].update(bytes(4), own)
    return kernel


def _key(request: dict[str, Any]) -> str:
    """Another text, compiler of ours or kernel is another image."""
    digest = hashlib.blake2b(json.dumps([request, os.uname().release, os.uname().version]).encode())
    for path in sorted(path for path in Path(__file__).parent.rglob("*") if path.suffix in (".c", ".h", ".py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _read(data: bytes | None) -> dict[str, Any] | None:
    with suppress(ValueError):
        image = json.loads(data) if data else None
        return image if isinstance(image, dict) else None
    return None


def _compile(request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    with os.fdopen(os.memfd_create("image"), "rb") as file:
        command = [sys.executable, "-I", "-m", "bpf.compiler", str(file.fileno())]
        streams: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        text = json.dumps(request).encode()
        try:
            done = subprocess.run(
                command, input=text, pass_fds=[file.fileno()], timeout=COMPILE_TIMEOUT_S, check=False, **streams
            )
        except subprocess.TimeoutExpired as error:
            raise BpfError(f"the BPF compiler took more than {error.timeout:.0f} s") from None
        except OSError as error:
            raise BpfError(f"the BPF compiler cannot be started: {error}") from error
        file.seek(0)
        data = file.read()
    image = _read(data)
    if image is None:
        raise BpfError(f"the BPF compiler ended with code {done.returncode}")
    if "error" in image:
        raise BpfError(_explain(image["error"], done.stderr.decode(errors="replace")))
    return image, data


def _fill(kernel: Kernel, image: dict[str, Any]) -> None:
    """Make the maps, then load the programs. Raises OSError, and leaves what is loaded by then."""
    descriptors = []
    for name, (description, leaf) in image["maps"].items():
        descriptors.append(create(description))
        if name in image["events"]:
            kernel.rings[name] = Ring(descriptors[-1], dtype_of_event(image["events"][name]))
        else:
            kernel.maps[name] = Map(descriptors[-1], dtype_of_leaf(leaf) if leaf else np.dtype(np.uint32))
    for name, code in image["programs"].items():
        kind, attach_to = PROBE, 0
        if name.startswith(PREFIX):
            kind, attach_to = TRACEPOINT, image["layout"][f"TYPE_{name.removeprefix(PREFIX)}"]
        try:
            kernel.programs[name] = load_program(name, bytes.fromhex(code), descriptors, kind, attach_to)
        except OSError as error:
            if kind == PROBE:
                raise
            kernel.refused[name] = f"{error.strerror}"


def _explain(error: str, noise: str = "") -> str:
    both = f"{error}\n{noise}"
    if "not permitted" in both or "Permission denied" in both:
        return "the kernel does not let this process load BPF: run as root or with CAP_BPF and CAP_PERFMON"
    complaint = next((line for line in noise.splitlines() if "error:" in line), "")
    if "Failed to compile" in error and "file not found" in complaint:
        return f"a header for BPF programs is missing: apt-get install linux-libc-dev ({complaint.strip()})"
    return f"{error} ({complaint.strip()})" if complaint else error
