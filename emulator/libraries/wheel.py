"""NVIDIA's own libnccl out of NVIDIA's wheels: where it lies in this environment, and how it is fetched."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

DEFAULT: Final = "2.27.3"
TRIED: Final = ("2.21.5", "2.23.4", DEFAULT, "2.29.3", "2.32.3")
"""Versions that the tests run on. All from 2.21.5 on can be played (cuda/nccl_device.c)."""
PACKAGE: Final = "nvidia-nccl-cu12"
MEMBER: Final = "nvidia/nccl/lib/libnccl.so.2"
PLATFORMS: Final = tuple(f"manylinux{glibc}_x86_64" for glibc in ("2014", "_2_17", "_2_18", "_2_27"))

INTERRUPTED: Final = 130
"""128 + SIGINT, as shells report it."""


class WheelError(OSError):
    """The library cannot be fetched; the message names cause and mend."""


def place(version: str = DEFAULT) -> Path:
    """Where the library of that version lies once it is fetched: in this Python's environment."""
    return Path(sys.prefix) / "nccl" / version / "libnccl.so.2"


def find(version: str = DEFAULT) -> Path | None:
    """The library of that version; None: it is not here."""
    return place(version) if place(version).exists() else None


def fetch(version: str, target: Path, package: str = PACKAGE) -> None:
    """Take the library out of NVIDIA's wheel, with pip. Raises WheelError."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        wanted = ["--no-deps", "--only-binary=:all:", *(f"--platform={name}" for name in PLATFORMS)]
        order = [sys.executable, "-m", "pip", "download", "--quiet", *wanted, "--dest", folder, f"{package}=={version}"]
        done = subprocess.run(order, stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            reason = next((line for line in done.stderr.splitlines() if line.startswith("ERROR")), "pip failed")
            raise WheelError(f"can't fetch {package} {version} ({reason}): the emulated libnccl does without it")
        with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as wheel:
            wheel.extract(MEMBER, folder)
        shutil.move(Path(folder) / MEMBER, target)


def main(arguments: Sequence[str] | None = None) -> int:
    """Fetch these versions, where they are not here: `python -m emulator.libraries.wheel [VERSION...]`."""
    failed = 0
    for version in (sys.argv[1:] if arguments is None else arguments) or (DEFAULT,):
        if find(version):
            continue
        print(f"libnccl {version} into {place(version).parent}", flush=True)
        try:
            fetch(version, place(version))
        except WheelError as error:
            print(error, file=sys.stderr)
            failed = 1
        except KeyboardInterrupt:
            return INTERRUPTED
    return failed


if __name__ == "__main__":
    sys.exit(main())
