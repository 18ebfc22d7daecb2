"""Compiles the emulated libraries, once for each state of their sources."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
# A function that begins with a push, as NVIDIA's do, is cheap to probe: the kernel emulates a push, while it has to
# step over most other instructions, which costs ten times as much.
PUSH_FIRST = ("-fno-omit-frame-pointer", "-fno-shrink-wrap")
FLAGS = (
    *PUSH_FIRST,
    "-g",
    "-O2",
    "-Wall",
    "-Wextra",
    "-shared",
    "-fPIC",
    "-fvisibility=hidden",
    "-pthread",
    "-Wl,--build-id",
)
_COMMON = ("common/fabric.c",)
_PRIVATE = ("take_over", "private_runtime", "private_driver", "wire", "nccl_kernel", "nccl_device")
"""What leads NVIDIA's own libnccl to the emulated GPU."""
CUDART = (
    *(f"cudart/{stem}.c" for stem in ("runtime", "event", "memory", "graph")),
    *(f"cuda/{stem}.c" for stem in _PRIVATE),
    "common/stream.c",
    *_COMMON,
)
_NCCL = ("collectives", "lifecycle", "queries", "communicator", "operation", "proxy")
NCCL = (*(f"nccl/{stem}.c" for stem in _NCCL), *_COMMON)
ETHTOOL = "libethtool-emulated.so"
"""Preloaded into a process, it answers for emulated network interfaces."""
NVML = tuple(f"nvml/{stem}.c" for stem in ("init", "queries", "fields", "gpm", "events", "topology", "mig"))

DCGM = tuple(f"dcgm/{stem}.c" for stem in ("engine", "values", "health"))


class BuildError(OSError):
    """The libraries could not be compiled; the message names cause and mend."""


@dataclass(frozen=True, slots=True)
class Libraries:
    """Where the libraries lie; all in one folder, under the names that programs load."""

    nccl: Path
    cudart: Path
    nvml: Path
    dcgm: Path

    @property
    def folder(self) -> Path:
        """The folder of all."""
        return self.nccl.parent


def cache_folder() -> Path:
    """The folder for compiled libraries: $XDG_CACHE_HOME/peerwatch/emulator, by default in ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "peerwatch" / "emulator"


def build(folder: Path | None = None) -> Libraries:
    """Compile the libraries below `folder` (default: the user's cache), unless these very sources were before.

    Raises BuildError when there is no C compiler, it refuses, or the folder can't be written.
    """
    target = (folder or cache_folder()) / _fingerprint()
    if not target.is_dir():
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            _compile_into(target)
        except (PermissionError, FileExistsError, NotADirectoryError) as error:
            raise BuildError(f"can't write {target.parent} ({error.strerror}): set XDG_CACHE_HOME") from None
    names = ("libnccl.so.2", "libcudart.so.12", "libnvidia-ml.so.1", "libdcgm.so.4")
    return Libraries(*(target / name for name in names))


def _compile_into(target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent) as made:
        out = Path(made) / "libraries"
        out.mkdir()
        version = f"-Wl,--version-script,{HERE / 'cudart' / 'cudart.map'}"
        _compile(out / "libcudart.so.12", CUDART, version)
        _compile(out / "libnccl.so.2", NCCL, "-Wl,-rpath,$ORIGIN", f"-L{out}", "-l:libcudart.so.12")
        _compile(out / ETHTOOL, ("ethtool/ioctl.c",))
        _compile(out / "libnvidia-ml.so.1", NVML, f"-Wl,--version-script,{HERE / 'nvml' / 'nvml.map'}")
        _compile(out / "libdcgm.so.4", DCGM, f"-Wl,--version-script,{HERE / 'dcgm' / 'dcgm.map'}")
        try:
            out.rename(target)
        except OSError:
            if not target.is_dir():  # else another process was faster, with the same result
                raise


def _fingerprint() -> str:
    digest = hashlib.sha256(" ".join(FLAGS).encode())
    for path in sorted(path for path in HERE.rglob("*") if path.suffix in (".c", ".h", ".map", ".py")):
        digest.update(str(path.relative_to(HERE)).encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _compile(out: Path, sources: tuple[str, ...], *options: str) -> None:
    compiler = shutil.which("cc")
    if not compiler:
        raise BuildError("no C compiler (cc) found for the emulated libraries: apt-get install gcc libc6-dev")
    files = [str(HERE / name) for name in sources]
    folders = [f"-I{HERE / name}" for name in ("common", "cuda", "cudart", "dcgm", "nccl", "nvml")]
    command = [compiler, *FLAGS, *folders, f"-Wl,-soname,{out.name}", "-o", str(out), *files, *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[:200])
        raise BuildError(f"cc could not compile {out.name}: {first}")
