"""Who takes more of the agent than its share hurts only itself; who has no GPU open does not count as training."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.binaries.known_files import OF_USER as KNOWN_OF_USER
from agent.binaries.known_files import KnownFiles
from agent.binaries.symbol_lookup import SymbolLookup
from agent.probes import attachments as attachments_module
from agent.probes.library import OF_PROCESS
from agent.system.costs import Costs
from emulator.libraries.build import Libraries as Built

HOG = 61234
"""A user of no rights."""
PROBED = ("probe", "nccl", "cuda")

FAKE = """
#include <stddef.h>
#define X __attribute__((visibility("default"), noinline))
X int ncclAllReduce(const void *a, void *b, size_t n, int t, int o, void *comm, void *s)
{ __asm__ volatile(""); return 0; }
X int ncclCommInitRank(void **out, int n, char *id, int rank) { __asm__ volatile(""); return 0; }
"""
MANY_COMMUNICATORS = """
import ctypes, sys, time
lib = ctypes.CDLL(sys.argv[1])
print("up", flush=True)
sys.stdin.readline()
for place in range(4096):
    lib.ncclAllReduce(None, None, ctypes.c_size_t(1000), 7, 0, ctypes.c_void_p(0x20000000 + 64 * place), None)
print("done", flush=True)
time.sleep(60)
"""
MANY_FILES = """
import ctypes, os, sys, time
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
content = open(sys.argv[1], "rb").read()
for number in range(int(sys.argv[2])):
    path = f"{sys.argv[3]}/{sys.argv[4]}{os.getpid()}-{number}.so"
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o700)
    os.write(file, content)
    assert libc.mmap(None, 4096, 5, 2, file, 0) != 2**64 - 1
    os.close(file)
    if "keep" not in sys.argv:
        os.unlink(path)
print("up", flush=True)
time.sleep(120)
"""


@pytest.fixture
def common() -> Iterator[Path]:
    """A folder that any user may read and write."""
    folder = Path(tempfile.mkdtemp(dir="/dev/shm"))
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts Python texts as the user without rights and waits for their first line; kills them in the end."""
    started: list[subprocess.Popen[str]] = []

    def begin(text: str, *arguments: object) -> subprocess.Popen[str]:
        command = ["/usr/bin/python3", "-I", "-c", text, *map(str, arguments)]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, user=HOG, group=HOG, extra_groups=[]
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def library(folder: Path, text: str = FAKE) -> Path:
    """A library of few functions of NCCL's."""
    path = folder / "libnccl.so.2"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-O1", "-o", str(path), "-x", "c", "-"], input=text, text=True, check=True
    )
    path.chmod(0o755)
    return path


def rows_of(rows: dict[str, list[dict[str, Any]]], pid: int) -> list[dict[str, Any]]:
    """The communicators of one process."""
    return [row for row in rows.get("nccl", ()) if row["pid"] == pid]


def peak() -> int:
    """The most memory that this process ever had resident, in bytes."""
    (line,) = [one for one in Path("/proc/self/status").read_text().splitlines() if one.startswith("VmHWM:")]
    return int(line.split()[1]) << 10


@pytest.mark.bpf
def test_no_gpu_no_rank(watch: Any, caller: Any, emulated: Built, tmp_path: Path) -> None:
    """A process without a GPU has no row and its end is no event, whatever it calls and however it names its files."""
    (tmp_path / "nvidia0").touch()  # a file of that name elsewhere is no GPU
    seen = watch(sources=PROBED)
    process = caller(emulated.cudart, emulated.nccl, prefix=["env", f"EMULATED_DEVICES={tmp_path}"], gpu=False)
    seen.wait_attached(emulated.nccl)
    assert str(tmp_path / "nvidia0") in {os.readlink(one) for one in Path(f"/proc/{process.pid}/fd").iterdir()}
    process.call()
    seen.until(lambda _: process.pid in seen.context.kernel.maps["slots"].rows()["tgid"])
    rows = [seen.read() for _ in range(4)]
    process.close()
    rows += [seen.read() for _ in range(4)]
    assert not any(rows_of(rows, process.pid) or rows.get("cuda") or rows.get("event") for rows in rows)
    assert process.pid not in seen.context.kernel.maps["slots"].rows()["tgid"]


@pytest.mark.bpf
def test_where_gpus_cannot_be_seen(watch: Any, caller: Any, emulated: Built) -> None:
    """The setting for machines with GPUs behind other nodes counts every process that calls."""
    seen = watch(sources=PROBED, require_gpu=False)
    process = caller(emulated.cudart, emulated.nccl, prefix=["env", "-u", "EMULATED_DEVICES"], gpu=False)
    seen.wait_attached(emulated.nccl)
    process.call()
    seen.until(lambda rows: rows_of(rows, process.pid))


@pytest.mark.bpf
def test_communicators_of_one_process(watch: Any, caller: Any, start: Any, common: Path, emulated: Built) -> None:
    """4,096 made-up communicators of one process leave room for a task's, and are counted as left out."""
    seen, path = watch(sources=PROBED), library(common)
    hog, task = start(MANY_COMMUNICATORS, path), caller(emulated.cudart, emulated.nccl, calls=43)
    seen.wait_attached(path)
    seen.wait_attached(emulated.nccl)
    hog.stdin.write("\n")
    hog.stdin.flush()
    assert hog.stdout.readline() == "done\n"
    task.call()
    (row,) = seen.until(lambda rows: [row for row in rows_of(rows, task.pid) if row["counted_from"]])
    assert row["operations_total"] == 43
    slots = seen.context.kernel.maps["slots"].rows()
    assert int((slots["tgid"] == hog.pid).sum()) == 256
    (rows,) = [one.values for one in seen.context.left_out.rows() if one.values["library"] == "left out: communicators"]
    assert (rows["state"], str(rows["reason"]).split(" ")[0]) == ("blocked", "3840")
    hog.kill()
    seen.until(lambda _: not (seen.context.kernel.maps["slots"].rows()["tgid"] == hog.pid).any())
    later = start(MANY_COMMUNICATORS, path)  # what was given back may be taken again
    seen.until(lambda _: any(later.pid in {u.pid for u in x.users} for x in _libraries(seen)))
    later.stdin.write("\n")
    later.stdin.flush()
    assert later.stdout.readline() == "done\n"
    assert int((seen.context.kernel.maps["slots"].rows()["tgid"] == later.pid).sum()) == 256


def _libraries(seen: Any, folder: Path = Path("/")) -> list[Any]:
    """Libraries of this folder; other tests run processes on this machine that map libraries of theirs."""
    return [one for one in seen.context.attachments.libraries.values() if Path(one.path).is_relative_to(folder)]


@pytest.mark.bpf
def test_junk_files(watch: Any, caller: Any, start: Any, common: Path, emulated: Built) -> None:
    """300 files of NCCL's name that hold nothing are listed in part, and a task's library carries probes."""
    junk = common / "junk"
    junk.write_bytes(b"\x7fELF\x02" + bytes(4096))
    start(MANY_FILES, junk, 300, common, "libnccl")
    seen = watch(sources=PROBED)
    task = caller(emulated.cudart, emulated.nccl, calls=47)
    seen.wait_attached(emulated.nccl)
    task.call()
    seen.until(lambda rows: rows_of(rows, task.pid))
    seen.until(lambda _: not seen.context.attachments._waiting)
    assert [one.state for one in _libraries(seen, common)] == ["blocked"] * 8
    assert any(one.values["library"] == "left out: blocked libraries" for one in seen.context.left_out.rows())


@pytest.mark.bpf
def test_libraries_of_one_process(watch: Any, start: Any, common: Path) -> None:
    """One process gets probes on few copies of NCCL; one of the others carries them once another process maps it."""
    fake = library(common)
    start(MANY_FILES, fake, 21, common, "libnccl", "keep")
    seen = watch(sources=PROBED)
    seen.until(lambda _: len(_libraries(seen, common)) == 21)
    assert sum(one.state == "on" for one in _libraries(seen, common)) == OF_PROCESS
    crowded = next(one for one in _libraries(seen, common) if one.state == "blocked")
    assert "16 of its process" in crowded.reason
    script = "import ctypes, sys, time; ctypes.CDLL(sys.argv[1]); print('up', flush=True); time.sleep(60)"
    start(script, crowded.path)
    seen.wait_attached(crowded.path)


@pytest.mark.bpf
def test_many_mapped_files(watch: Any, caller: Any, start: Any, common: Path, emulated: Built) -> None:
    """Tens of thousands of mapped files cost neither memory nor readings, and a task's library is found soon."""
    (common / "one").write_bytes(b"x")
    for _ in range(2):
        start(MANY_FILES, common / "one", 12_000, common, "x")
    seen = watch(sources=PROBED)
    seen.read()
    before, took = peak(), 0.0
    task = caller(emulated.cudart, emulated.nccl, calls=53)
    limit = time.monotonic() + 120
    while not any(one.path == str(emulated.nccl) and one.state == "on" for one in _libraries(seen)):
        begin = time.process_time()  # by the wall clock other tests on this machine would count
        seen.read()
        took = max(took, time.process_time() - begin)
        assert time.monotonic() < limit
        time.sleep(0.1)
    task.call()
    seen.until(lambda rows: rows_of(rows, task.pid))
    assert took < 2.0
    assert peak() - before < 60 << 20
    assert any(one.values["library"] == "left out: mapped files" for one in seen.context.left_out.rows())


@pytest.mark.bpf
def test_a_probe_that_could_not_be_put_on(
    watch: Any, caller: Any, emulated: Built, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library that was refused probes once is tried again, since the reason may have gone."""
    attach, refusals = attachments_module.attach, [28]

    def refuse(*place: Any) -> int:
        if refusals:
            raise OSError(refusals.pop(), "no space left today")
        return attach(*place)

    monkeypatch.setattr(attachments_module, "attach", refuse)
    monkeypatch.setattr(attachments_module, "AGAIN_S", 1.5)
    seen = watch(sources=PROBED)
    caller(emulated.cudart, emulated.nccl)
    seen.until(lambda _: [one for one in _libraries(seen) if one.reason.endswith("no space left today")])
    seen.wait_attached(emulated.cudart)
    seen.wait_attached(emulated.nccl)


SLOW_NAMES, SLOW_SYMBOLS = 20_000, 40_000


def slow_library(path: Path) -> None:
    """A file with symbols that take long to search: every name is the wanted one, and no symbol is."""
    names = b"\0" + b"ncclCommInitRank\0" * SLOW_NAMES
    symbol = (0xFFFFFFF0).to_bytes(4, "little") + bytes([2, 0, 1, 0]) + bytes([1, *[0] * 7]) * 2
    _write_elf(path, names, symbol * SLOW_SYMBOLS)


def _write_elf(path: Path, names: bytes, symbols: bytes) -> None:
    own, start = b"\0.s\0.y\0.x\0", 64
    places = [start, start + len(names), start + len(names) + len(symbols)]
    header = places[2] + len(own)
    sections = [(0, 0, 0, 0, 0, 0), (1, 3, places[0], len(names), 0, 0)]
    sections += [(4, 2, places[1], len(symbols), 1, 24), (7, 3, places[2], len(own), 0, 0)]
    words = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\0\x3e\0\x01\0\0\0" + bytes(16) + header.to_bytes(8, "little")
    words += bytes(4) + b"".join(n.to_bytes(2, "little") for n in (64, 56, 0, 64, 4, 3))
    table = b""
    for name, kind, offset, size, link, entry in sections:
        table += name.to_bytes(4, "little") + kind.to_bytes(4, "little") + bytes(16)
        table += offset.to_bytes(8, "little") + size.to_bytes(8, "little") + link.to_bytes(4, "little") + bytes(12)
        table += entry.to_bytes(8, "little")
    path.write_bytes(words + names + symbols + own + table)


def test_slow_files_wait_behind_others(emulated: Built, tmp_path: Path) -> None:
    """Files that take long to read keep those of another user waiting for one batch at most."""
    slow = tmp_path / "slow.so"
    slow_library(slow)
    finder, answered = SymbolLookup(["ncclCommInitRank", "ncclAllReduce"], layout_for=""), []
    for number in range(31):
        finder.ask(("slow", number), (str(slow),), (HOG, 4321))
    finder.poll()
    finder.ask("task", (str(emulated.nccl),), (1000, 97))
    limit = time.monotonic() + 90
    while "task" not in answered and time.monotonic() < limit:
        answered += [answer.key for answer in finder.poll()]
        time.sleep(0.1)
    finder.close()
    assert answered[-1] == "task"
    assert len(answered) < 31


def test_room_for_files_that_wait() -> None:
    """One process, and one user, has room for so many files; others still have theirs."""
    finder = SymbolLookup([])
    for pid in (71, 73, 79):
        while finder.has_room((HOG, pid)):
            finder.ask(object(), ("/no",), (HOG, pid))
    assert finder._of_process[HOG, 71] == finder._of_process[HOG, 73] == 512
    assert finder._of_user[HOG] == 1024
    assert finder.has_room((1000, 83))


def test_the_cheapest_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Users are sorted by what they cost, processes of one user too; what is long ago counts less."""
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    costs = Costs()
    costs.add((7, 71), 3.0)
    costs.add((7, 73), 1.0)
    costs.add((9, 91), 2.0)
    owners = [(7, 71), (7, 73), (9, 91), (11, 97)]
    assert sorted(owners, key=costs.rank) == [(11, 97), (9, 91), (7, 73), (7, 71)]
    clock[0] += 600.0
    costs.add((11, 97), 0.1)
    assert sorted(owners, key=costs.rank)[-1] == (11, 97)


def test_known_files_of_one_user() -> None:
    """The files of a user who maps very many are evicted first, and no other user's."""
    known = KnownFiles()
    known.put(("8:1", 5, "libnccl.so.2"), "task", 1000)
    for inode in range(2 * KNOWN_OF_USER + 7):
        known.put(("8:1", inode, "x"), "", HOG)
    assert known.get(("8:1", 5, "libnccl.so.2")) == "task"
    assert sum(known.get(("8:1", inode, "x")) == "" for inode in range(2 * KNOWN_OF_USER + 7)) == 7
    known.evict("task")
    assert known.get(("8:1", 5, "libnccl.so.2")) is None
