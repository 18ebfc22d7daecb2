"""Reading libraries, sound and hostile."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import select
import signal
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest
from elftools.elf.elffile import ELFFile
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.binaries.elf_worker import answers, examine, find_build_id
from agent.binaries.opened_file import open_library
from agent.binaries.struct_layouts import OPTIONAL, STRUCTURES
from agent.binaries.symbol_lookup import SymbolLookup
from emulator.libraries.build import Libraries as Built

TIOCSPTLCK, TIOCGPTN = 0x40045431, 0x80045430  # asm-generic/ioctls.h: unlock a pseudoterminal, and its number
WANTED = ["ncclAllReduce", "pncclAllReduce", "ncclCommInitRank", "ncclBcast", "ncclNoSuchThing"]


@pytest.fixture(autouse=True)
def no_memory(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is known from an earlier look."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def ask(path: Path, layout_for: str = "ncclCommInitRank") -> list[dict[str, object]]:
    """The answers about one file."""
    return list(answers(open_library([str(path)]), WANTED, layout_for))


def test_functions_and_layout(emulated: Built) -> None:
    """Functions are found with their file offsets (aliases at one place), the layout from debug information."""
    found, layout = ask(emulated.nccl)
    functions = found["functions"]
    assert isinstance(functions, dict)
    assert functions["ncclAllReduce"] == functions["pncclAllReduce"] != functions["ncclBcast"]
    assert "ncclNoSuchThing" not in functions
    listing = subprocess.run(
        ["objdump", "-d", "-F", str(emulated.nccl)], capture_output=True, text=True, check=True
    ).stdout
    assert f"(File Offset: {functions['ncclBcast']:#x})" in listing
    offsets = layout["layout"]
    assert isinstance(offsets, dict)
    assert set(offsets) == {*STRUCTURES, *OPTIONAL}
    assert offsets["ncclComm"]["nRanks"] == offsets["ncclComm"]["rank"] + 4


def test_real_library(real_nccl: Path) -> None:
    """NVIDIA's library gives its functions and, unstripped as it is shipped, its layout (2.31.2)."""
    found, layout = ask(real_nccl)
    functions = found["functions"]
    assert isinstance(functions, dict)
    assert functions["ncclAllReduce"] == 689696
    offsets = layout["layout"]
    assert isinstance(offsets, dict)
    assert offsets["ncclComm"]["commHash"] == 1181408
    assert offsets["ncclProxySubArgs"]["sizeof"] == 512


def test_findings_1_a_stripped_library_is_known_by_its_build_alone(real_nccl: Path, tmp_path: Path) -> None:
    """NVIDIA's library without debug information has its layout by its build id; without that id too it has none."""
    whole = ask(real_nccl)[1]["layout"]
    for more, layout in (((), whole), (("-R", ".note.gnu.build-id"), None)):
        stripped = tmp_path / f"libnccl{len(more)}.so.2"
        subprocess.run(["strip", *more, "-o", stripped, real_nccl], check=True)
        found = ask(stripped)
        assert found[0]["functions"] != {}
        assert found[1]["layout"] == layout


def test_findings_1_packages_of_distributions(real_nccl: Path, tmp_path: Path) -> None:
    """A stripped package (apt, NGC) of the wheel's build is known, whatever version it prints; a rebuilt one is not.

    Packages themselves were not seen: the wheel's library is stripped as Debian's dh_strip does, and then edited. A
    build of somebody's own, as conda-forge's, has a build id of its own.
    """
    whole, package = ask(real_nccl)[1]["layout"], tmp_path / "libnccl.so.2"
    less = ("--remove-section=.comment", "--remove-section=.note", "--strip-unneeded")
    subprocess.run(["strip", *less, "-o", package, real_nccl], check=True)
    with real_nccl.open("rb") as file:
        build = bytes.fromhex(str(find_build_id(ELFFile(file))))
    for known, found in ((b"", b""), (b"NCCL version 2.31.2", b"NCCL version 9.99.7"), (build, bytes(len(build)))):
        data = bytearray(package.read_bytes())
        assert known in data
        package.write_bytes(data.replace(known, found) if known else data)
        functions, layout = ask(package)
        assert "ncclAllReduce" in functions["functions"]
        assert layout["layout"] == (None if known == build else whole)


def test_findings_2_no_probe_on_the_cuda_runtime_inside_of_libnccl(tmp_path: Path) -> None:
    """What NCCL's private CUDA runtime is asked is no call of the program, so its functions are not found."""
    source, library = tmp_path / "nccl.c", tmp_path / "libnccl.so.2"
    runtime = "__attribute__((noinline)) static int cudaStreamSynchronize(int a) { return a * a + 17; }"
    source.write_text(f"{runtime} int ncclAllReduce(int a) {{ return cudaStreamSynchronize(a) + 3; }}")
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
    assert "cudaStreamSynchronize" in subprocess.run(["nm", library], capture_output=True, text=True, check=True).stdout
    (found, *_) = answers(open_library([str(library)]), ["ncclAllReduce", "cudaStreamSynchronize"], "ncclCommInitRank")
    assert list(found["functions"]) == ["ncclAllReduce"]


def test_a_static_cuda_runtime_of_a_program_is_found(tmp_path: Path) -> None:
    """A program that has CUDA linked in calls it itself: there the same local function is found."""
    source, program = tmp_path / "train.c", tmp_path / "train"
    source.write_text(
        "__attribute__((noinline)) static int cudaStreamSynchronize(int a) { return a * a + 19; }"
        "int main(int count, char **words) { (void)words; return cudaStreamSynchronize(count); }"
    )
    subprocess.run(["gcc", "-O1", "-o", program, source], check=True)
    (found, *_) = answers(open_library([str(program)]), ["ncclAllReduce", "cudaStreamSynchronize"], "ncclCommInitRank")
    assert list(found["functions"]) == ["cudaStreamSynchronize"]


def test_stripped_library(emulated: Built, tmp_path: Path) -> None:
    """A stripped library keeps its public functions and has no layout."""
    stripped = tmp_path / "libnccl.so.2"
    subprocess.run(["strip", "-o", str(stripped), str(emulated.nccl)], check=True)
    found, layout = ask(stripped)
    assert found["functions"] == ask(emulated.nccl)[0]["functions"]
    assert layout["layout"] is None


@pytest.fixture(scope="module")
def original(emulated: Built) -> bytes:
    """The bytes of a sound library."""
    return emulated.cudart.read_bytes()


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 1 << 32), damage=st.integers(1, 40), cut=st.none() | st.integers(0, 60_000))
def test_damaged_libraries(tmp_path: Path, original: bytes, seed: int, damage: int, cut: int | None) -> None:
    """Bytes overwritten and ends cut off: an answer comes, and it is about this file."""
    chance, data = random.Random(seed), bytearray(original)
    headers = [chance.randrange(64), chance.randrange(len(data) - 3000, len(data))]
    for place in headers + [chance.randrange(len(data)) for _ in range(damage)]:
        data[place] = chance.choice([0, 1, 0x7F, 0xFF, chance.randrange(256)])
    path = tmp_path / "damaged"
    path.write_bytes(data[:cut])
    found = ask(path, layout_for="cudaMalloc")
    assert found[-1]["done"] is True
    for offset in (found[0].get("functions") or {}).values():  # type: ignore[attr-defined]
        assert offset >= 0


@given(st.binary(max_size=300))
def test_no_library_at_all(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    """A file that is no library has no functions or says why."""
    path = tmp_path_factory.mktemp("any") / "file"
    path.write_bytes(data)
    (found,) = ask(path)
    assert found.get("functions") == {} or found["error"]


def test_not_even_a_file(tmp_path: Path) -> None:
    """Folders, devices and missing files are answered for, without waiting for any of them."""
    os.mkfifo(tmp_path / "pipe")
    assert [ask(path)[0].get("functions") for path in (tmp_path / "pipe", tmp_path, Path("/dev/null"))] == [{}] * 3
    assert "gone" in ask(tmp_path / "nothing")[0]


def test_a_device_is_not_opened(tmp_path: Path) -> None:
    """A library's path that leads to a device is not opened: that alone may start what the device is for."""
    controller = os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    fcntl.ioctl(controller, TIOCSPTLCK, struct.pack("i", 0))
    (number,) = struct.unpack("i", fcntl.ioctl(controller, TIOCGPTN, bytes(4)))
    (tmp_path / "libnccl.so.2").symlink_to(f"/dev/pts/{number}")
    watched = select.poll()
    watched.register(controller, 0)
    assert ask(tmp_path / "libnccl.so.2")[0]["functions"] == {}
    assert watched.poll(0) == []  # once its terminal was opened and closed it says so for ever
    os.close(os.open(f"/dev/pts/{number}", os.O_RDWR | os.O_NOCTTY))
    assert watched.poll(0) == [(controller, select.POLLHUP)]
    os.close(controller)


def test_first_path_that_opens(emulated: Built, tmp_path: Path) -> None:
    """Of several paths the first that can be opened is read, and named."""
    found = next(iter(examine(open_library([str(tmp_path / "no"), str(emulated.nccl)]), WANTED, "")))
    assert found["path"] == str(emulated.nccl)


def test_child_that_dies_costs_one_file(emulated: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the reading child dies, the file it was at is blamed and the others are answered."""
    finder = SymbolLookup(WANTED)
    finder.ask("bad", ("/dev/zero-is-fine", "/proc/kcore-does-not-open"))
    finder.ask("good", (str(emulated.nccl),))
    finder.poll()
    child = finder._task._child
    assert child is not None
    child.kill()
    child.wait()
    collected = []
    while finder.busy:
        collected += finder.poll()
    finder.close()
    assert (collected[0].key, bool(collected[0].error)) == ("bad", True)
    assert any(answer.key == "good" and answer.functions for answer in collected)


@pytest.mark.parametrize("killable", [True, False])
def test_child_that_hangs_costs_one_file(emulated: Built, monkeypatch: pytest.MonkeyPatch, killable: bool) -> None:
    """A child that waits for a file system for ever is given up, killable or not, and the others are answered."""
    finder = SymbolLookup(WANTED)
    finder.ask("bad", ("/mnt/server-that-is-away/libnccl.so.2",))
    finder.ask("good", (str(emulated.nccl),))
    finder.poll()
    child = finder._task._child
    assert child is not None
    child.send_signal(signal.SIGSTOP)
    if not killable:
        monkeypatch.setattr(child, "kill", lambda: None)
    monkeypatch.setattr(finder._task, "patience_s", 0.0)
    (given_up,) = finder.poll()
    monkeypatch.undo()
    assert given_up.key == "bad"
    assert given_up.error.startswith("reading it took too long")
    assert given_up.error.endswith("does not answer") is not killable
    collected = []
    while finder.busy:
        collected += finder.poll()
    finder.close()
    assert any(answer.key == "good" and answer.functions for answer in collected)
    child.kill()
    child.wait()


def test_files_wait_until_a_child_can_be_started(emulated: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no room for a process now, what was asked for is asked for again."""
    finder = SymbolLookup(WANTED)
    finder.ask("good", (str(emulated.nccl),))

    def refuse(*_: Any, **__: Any) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", refuse)
        with pytest.raises(BlockingIOError):
            finder.poll()
    assert finder.busy
    collected = []
    while finder.busy:
        collected += finder.poll()
    finder.close()
    assert any(answer.key == "good" and answer.functions for answer in collected)


def test_children_that_hang_are_few(emulated: Built) -> None:
    """While too many cannot be killed no more are started; when one has ended, files are read again."""
    with subprocess.Popen(["sleep", "60"]) as stuck:
        finder = SymbolLookup(WANTED)
        finder._task._left = [stuck] * 4
        finder.ask("good", (str(emulated.nccl),))
        assert (finder.poll(), finder._task._child, finder.busy) == ([], None, True)
        stuck.kill()
        stuck.wait()
        assert finder.poll() == []
        assert finder._task._child is not None
        finder.close()
