"""Garbage collections of CPython, counted and timed in training processes and nowhere else."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.binaries.elf_worker import answers, find_trace_points
from agent.binaries.opened_file import open_library
from agent.binaries.usdt import parse_notes
from agent.config import AgentConfig
from agent.probes.uretprobe_policy import UretprobePolicy, is_filtered, kernel_is_safe
from agent.process.memory import Memory
from agent.python_gc.cpython import STRIPPED, WANTED, plan
from agent.python_gc.gc_probe import State
from agent.python_gc.gc_probes import GcProbes
from agent.python_gc.gc_stats import count_collections, find_statistics
from bpf.uprobe import Point
from emulator.libraries.build import Libraries

SOURCES = ("probe", "nccl", "cuda", "python")
MAIN = {8: "collect.constprop.1", 9: "collect", 14: "_PyGC_Collect"}
CALLBACK = {8: "invoke_gc_callback.constprop.0"}
"""What GCC left of the functions at the usual options, by minor version; the others are listed below."""


def names(minor: int) -> dict[str, int]:
    """Functions as a build of that version has them in its symbol table, each at a place of its own."""
    main = MAIN.get(minor, "gc_collect_main")
    callback = CALLBACK.get(minor, "invoke_gc_callback.isra.0")
    found = {"PyGC_Collect": 4096 + minor, main: 8192 + minor, callback: 16384 + minor}
    return found | ({"_PyGC_Collect": 32768} if minor == 13 else {})


@pytest.mark.parametrize("minor", range(8, 15))
def test_every_version_has_a_bracket(minor: int) -> None:
    """One function is entered before and after a collection, in each version: it is probed, and nothing else."""
    found = plan(names(minor), {}, "returns are not to be had")
    assert found is not None
    assert found.timed
    assert found.points == (("python_phase", Point(16384 + minor)),)


@pytest.mark.parametrize("minor", range(8, 15))
def test_without_the_bracket(minor: int) -> None:
    """Where the compiler put it into its callers, the return tells the end; else collections are only counted."""
    functions = {name: place for name, place in names(minor).items() if not name.startswith("invoke")}
    both, one = plan(functions, {}, ""), plan(functions, {}, "no returns here")
    assert both is not None
    assert one is not None
    place = 8192 + minor
    assert both.points == (("python_begin", Point(place)), ("python_end", Point(place, returns=True)))
    assert both.timed
    assert one.points == (("python_count", Point(place)),)
    assert not one.timed
    assert "no returns here" in one.reason


def test_trace_points_come_first() -> None:
    """Trace points need no symbols, and there may be several of a name; each has its own counter of watchers."""
    functions = names(8) | {"python:gc__start": 61, "python:gc__start#1": 67, "python:gc__done": 71}
    found = plan(functions, {"python:gc__start": 3, "python:gc__start#1": 3, "python:gc__done": 5}, "")
    assert found is not None
    begins, ends = (("python_begin", Point(61, 3)), ("python_begin", Point(67, 3))), (("python_end", Point(71, 5)),)
    assert found.points == begins + ends


def test_stripped_and_strange_files() -> None:
    """Public functions alone tell nothing, and say so; a file without them is no interpreter, whatever is in it."""
    stripped = plan({"PyGC_Collect": 4099}, {}, "")
    assert stripped is not None
    assert (stripped.points, stripped.reason) == ((), STRIPPED)
    assert plan({"collect": 4096, "invoke_gc_callback": 8192}, {}, "") is None


def note(
    provider: bytes, name: bytes, places: tuple[int, int, int], kind: int = 3, owner: bytes = b"stapsdt\0"
) -> bytes:
    """One note as the assembler writes it."""
    content = struct.pack("<QQQ", *places) + b"\0".join((provider, name, b"-4@%eax", b""))
    padded = owner + bytes(-len(owner) % 4) + content + bytes(-len(content) % 4)
    return struct.pack("<III", len(owner), len(content), kind) + padded


WORDS = st.text("abcdefg_", min_size=1, max_size=9)
PLACES = st.tuples(*[st.integers(0, (1 << 64) - 1)] * 3)


@given(st.lists(st.tuples(WORDS, WORDS, PLACES, st.sampled_from([3, 4]), st.sampled_from([b"stapsdt\0", b"GNU\0"]))))
def test_notes(entries: list[tuple[str, str, tuple[int, int, int], int, bytes]]) -> None:
    """All trace points come out in order, and what is of another kind or owner does not."""
    data = b"".join(note(one.encode(), two.encode(), *rest) for one, two, *rest in entries)
    rows = [(point.name, point.location, point.base, point.semaphore) for point in parse_notes(data)]
    assert rows == [(f"{e[0]}:{e[1]}", *e[2]) for e in entries if e[3:] == (3, b"stapsdt\0")]


def test_a_file_that_wants_endless_probes() -> None:
    """A file that says of thousands of places that they collect garbage gets no probe, and the reason says so."""
    places = {f"python:gc__{end}" + f"#{n}" * bool(n): 64 * n + 7 for end in ("start", "done") for n in range(3000)}
    chosen = plan(places | {"PyGC_Collect": 5}, {}, "")
    assert chosen is not None
    assert chosen.points == ()
    assert "too many places" in chosen.reason
    notes = b"".join(note(b"python", b"gc__done", (64 * n + 7, 0, 0)) for n in range(3000))
    found, _ = find_trace_points(Notes(notes), ["python:gc__done"])
    assert 64 < len(found) < 80


class Notes:
    """An ELF file that has nothing but notes."""

    def __init__(self, notes: bytes) -> None:
        self.notes = notes

    def get_section_by_name(self, name: str) -> Any:
        """The section of notes."""
        return self if name == ".note.stapsdt" else None

    def __getitem__(self, word: str) -> int:
        return len(self.notes)

    def data(self) -> bytes:
        """What the section holds."""
        return self.notes

    def address_offsets(self, address: int) -> list[int]:
        """Every address is its own offset."""
        return [address]


@given(st.binary(max_size=200), st.integers(0, 90))
def test_damaged_notes(garbage: bytes, cut: int) -> None:
    """Garbage and cut ends give fewer trace points, and never an error."""
    sound = note(b"python", b"gc__done", (5, 7, 11))
    assert len(list(parse_notes(garbage))) <= len(garbage) // 40
    assert [point.name for point in parse_notes((sound * 2)[: len(sound) + cut])][:1] == ["python:gc__done"]


@pytest.mark.parametrize(
    ("release", "symbols", "safe"),
    [
        ("6.14.2-generic", None, True),
        ("7.0.1", None, True),
        ("6.18.44", b"ffff T __x64_sys_uretprobe\n", True),
        ("6.12.9", b"ffff T __x64_sys_uretprobe\nffff t other\n", False),
        ("5.14.0-570.el9", b"ffff T __x64_sys_uretprobe\n", False),
        ("6.10.3", b"ffff t sys_uretprobe_not\n", True),
        ("6.11.0", b"ffff t other\n", True),
        ("5.15.0", None, False),
        ("5.15.0", b"", False),
        ("strange", b"ffff t other\n", True),
    ],
)
def test_return_probes_under_seccomp(tmp_path: Path, release: str, symbols: bytes | None, safe: bool) -> None:
    """From 6.11 to 6.13 a probed return can kill (requests 14); the kernel's own symbols count, not its number."""
    if symbols is not None:
        (tmp_path / "kallsyms").write_bytes(symbols)
    assert kernel_is_safe(release, tmp_path / "kallsyms") is safe


def test_return_policies(tmp_path: Path) -> None:
    """`never` is never; `auto` asks the kernel alone; `always` still spares a process with filtered calls."""
    (tmp_path / "kallsyms").write_bytes(b"ffff T __x64_sys_uretprobe\n")
    for pid, status in (
        (31, b"Name:\tx\nSeccomp:\t0\nSeccomp_filters:\t0\n"),
        (37, b"Seccomp:\t2\n"),
        (41, b"Name:\tx\n"),
    ):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "status").write_bytes(status)
    assert "never" in UretprobePolicy("never", "6.18.0", tmp_path).refused(31)
    assert "6.12.3" in UretprobePolicy("auto", "6.12.3", tmp_path).refused(31)
    assert UretprobePolicy("auto", "6.18.0", tmp_path).refused(37) == ""
    daring = UretprobePolicy("always", "6.12.3", tmp_path)
    assert [bool(daring.refused(pid)) for pid in (31, 37, 41, 43)] == [False, True, True, True]
    assert is_filtered(b"Seccomp:\t1\n")


def test_settings() -> None:
    """A policy that is none, and python without a source that tells who trains, are refused by name."""
    with pytest.raises(ValueError, match="return_probes"):
        AgentConfig(return_probes="sometimes")
    with pytest.raises(ValueError, match="beside python"):
        AgentConfig(sources=("probe", "python"))


class Held:
    """Memory of a process that does not run: pieces by address."""

    def __init__(self, pieces: dict[int, bytes]) -> None:
        self.pieces = pieces

    def read(self, address: int, size: int) -> bytes | None:
        """That many bytes of one piece."""
        for start, piece in self.pieces.items():
            if start <= address and address + size <= start + len(piece):
                return piece[address - start :][:size]
        return None


def state(address: int, counts: tuple[int, int, int], threshold: int = 700) -> bytes:
    """The collector's state at an address as 3.8 to 3.13 lay it out, from the generations on."""
    generations = b"".join(struct.pack("<QQii", 61, 67, threshold, 71) for _ in range(3))
    statistics = b"".join(struct.pack("<qqq", count, 73, 79) for count in counts)
    return generations + struct.pack("<Q", address) + bytes(24) + statistics


ROOT, HEAP = 0x7F0000002000, 0x55550000B010


@given(st.integers(0, 900), st.tuples(*[st.integers(0, (1 << 40) - 1)] * 3), st.booleans())
def test_an_interpreters_own_count(before: int, counts: tuple[int, int, int], apart: bool) -> None:
    """The statistics are found wherever they lie, in the variable itself or in what it points to."""
    start = HEAP if apart else ROOT
    piece = bytes(before // 2 * 8)
    piece += state(start + len(piece), counts) + bytes(4096)
    pieces = {HEAP: piece, ROOT: struct.pack("<QQQ", 1, HEAP, 2)} if apart else {ROOT: piece}
    memory: Any = Held(pieces)
    place = find_statistics(memory, ROOT, len(pieces[ROOT]))
    assert place is not None
    assert count_collections(memory, place) == sum(counts)


@given(st.binary(max_size=400), st.integers(-3, 600))
def test_memory_that_is_no_interpreter(garbage: bytes, size: int) -> None:
    """Whatever lies there, and however large it is said to be: nothing is found, and nothing breaks."""
    memory: Any = Held({ROOT: garbage})
    assert find_statistics(memory, ROOT, size) is None
    assert count_collections(memory, ROOT + 4) is None or len(garbage) >= 76


def test_counts_that_cannot_be() -> None:
    """A state with absurd thresholds or counts is none."""
    for piece in (state(ROOT, (5, 7, -11)), state(ROOT, (5, 7, 11), threshold=-3), state(ROOT + 8, (5, 7, 11))):
        memory: Any = Held({ROOT: piece})
        assert find_statistics(memory, ROOT, len(piece)) is None


STAND_IN = """
#define HIDDEN(name) __asm__(name) __attribute__((noinline, used))
static volatile long turns;
static void callback(PHASE) HIDDEN(CALLBACK);
static void callback(PHASE) { turns += TOUCH; }
static long collect(long) HIDDEN(MAIN);
static long collect(long generation) { START; for (long i = 0; i < 20000; i++) turns++; STOP; return generation; }
long PyGC_Collect(void) { return 0; }
long run(long times) { for (long i = 0; i < times; i++) { BEFORE; collect(2); AFTER; } return turns; }
"""
"""A library with the symbols of an interpreter that enter one another in the same order."""


def stand_in(folder: Path, minor: int, bracket: bool = True, touch: bool = True) -> Path:
    """A libpython of that version, as far as its symbols go. Without `touch` nothing in it reads the words."""
    first = minor == 8  # the compiler dropped what stood before the phase
    inside = minor >= 13  # from then on the collection itself calls back
    start, stop = (f'callback({"" if first else "0, "}"{word}")' if bracket else "" for word in ("start", "stop"))
    defines = {
        "PHASE": "const char *word" if first else "void *state, const char *word",
        "TOUCH": "word[0]" if touch else "word != 0",
        "CALLBACK": json.dumps(CALLBACK.get(minor, "invoke_gc_callback.isra.0") if bracket else "unrelated"),
        "MAIN": json.dumps(MAIN.get(minor, "gc_collect_main")),
        "START": start if inside else "",
        "STOP": stop if inside else "",
        "BEFORE": "" if inside else start,
        "AFTER": "" if inside else stop,
    }
    path, source = folder / f"libpython3.{minor}.so.1.0", folder / f"stand_in_{minor}.c"
    source.write_text("".join(f"#define {key} {value}\n" for key, value in defines.items()) + STAND_IN)
    order = ["cc", "-O1", "-g0", "-fPIC", "-shared", "-fno-optimize-sibling-calls", "-o", str(path), str(source)]
    subprocess.run(order, check=True)
    return path


@pytest.mark.parametrize("minor", range(8, 15))
def test_symbols_of_every_version_are_found(tmp_path: Path, minor: int) -> None:
    """Out of a file with the symbols of a version comes the plan for it; stripped, the plan says why there is none."""
    library = stand_in(tmp_path, minor)
    (answer,) = answers(open_library([str(library)]), list(WANTED), "")
    found = plan(answer["functions"], answer["semaphores"], "")
    assert found is not None
    assert [program for program, _ in found.points] == ["python_phase"]
    subprocess.run(["strip", str(library)], check=True)
    (answer,) = answers(open_library([str(library)]), list(WANTED), "")
    found = plan(answer["functions"], answer["semaphores"], "")
    assert found is not None
    assert found.reason == STRIPPED


PROGRAM = """
import ctypes, gc, os, sys, time
gc.disable()
heap = [[] for _ in range(30000)]
for one in heap: one.append(heap)
spent, began = 0.0, 0.0
def timed(phase, info):
    global spent, began
    if phase == "start": began = time.monotonic()
    else: spent += time.monotonic() - began
gc.callbacks.append(timed)
libraries = [ctypes.CDLL(path, ctypes.RTLD_GLOBAL) for path in sys.argv[1:]]
class Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_void_p)]
def forbid(number):
    rules = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x80000000), (0x06, 0, 0, 0x7FFF0000)]
    import struct
    code = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *rule) for rule in rules))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    assert libc.prctl(22, 2, ctypes.byref(Filter(len(rules), ctypes.addressof(code))), 0, 0) == 0
def train():
    libraries[1].ncclAllReduce(None, None, ctypes.c_size_t(1), 7, 0, None, None)
def collect(times):
    for _ in range(times): gc.collect()
def fork(times):
    if os.fork() == 0:
        collect(times)
        os._exit(0)
    os.wait()
print("{}", flush=True)
for line in sys.stdin:
    before = spent
    exec(line)
    print(spent - before, flush=True)
"""


class Trainer:
    """A Python process with libraries in it that runs statements on command."""

    def __init__(self, python: str, libraries: list[Path], gpu: str) -> None:
        self.gpu = gpu
        self.process = subprocess.Popen(
            [python, "-I", "-c", PROGRAM, *map(str, libraries)],
            env={**os.environ, "CUDA_VISIBLE_DEVICES": gpu},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.pid = self.process.pid
        self.process.stdout.readline()

    def do(self, order: str) -> float:
        """Run a statement there; the seconds that its garbage collections took, as the process itself saw it."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{order}\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.communicate()


@pytest.fixture(scope="module")
def seen(lasting_watch: Any) -> Any:
    """One agent for all: each process has a GPU of its own."""
    return lasting_watch(sources=SOURCES)


GPUS = itertools.count(731)  # GPUs that no other process of this machine has: they identify rows


@pytest.fixture
def trainer(emulated: Libraries) -> Iterator[Callable[..., Trainer]]:
    """Starts Python processes with the emulated libraries loaded."""
    started: list[Trainer] = []

    def start(*more: Path, python: str = sys.executable) -> Trainer:
        started.append(Trainer(python, [emulated.cudart, emulated.nccl, *more], str(next(GPUS))))
        return started[-1]

    yield start
    for one in started:
        one.close()


def watched(seen: Any) -> GcProbes:
    """The interpreters that an agent knows."""
    (source,) = [worker.source for worker in seen.reader.workers if worker.name == "python"]
    found: GcProbes = source.watched
    return found


def begin(seen: Any, emulated: Libraries, process: Trainer) -> Any:
    """Make a process train; its entry among the interpreters, as soon as it is clear how it stands with it."""
    seen.wait_attached(emulated.nccl)
    process.do("train()")

    def known(_: Any) -> Any:
        found = [one for one in watched(seen).probes.values() if one.process.pid == process.pid]
        return found and found[0].state is not State.LOOKUP and found[0]

    return seen.until(known)


def pauses(seen: Any, process: Trainer) -> list[dict[str, Any]]:
    """The rows that tell of pauses of that process."""
    rows = seen.read().get("cuda", ())
    return [row for row in rows if row["gpu"] == process.gpu and "gc_pauses_total" in row]


@pytest.mark.bpf
def test_a_real_interpreter(seen: Any, trainer: Any, emulated: Libraries) -> None:
    """Collections are counted exactly, and take as long as the process itself saw; a stranger's cost nothing."""
    process, stranger = trainer(), trainer()
    found = begin(seen, emulated, process)
    if found.reason == STRIPPED:
        pytest.skip(f"{sys.executable}: {STRIPPED}")
    stranger.do("collect(29)")
    spent = process.do("collect(17)")
    (row,) = pauses(seen, process)
    assert row["gc_pauses_total"] == 17
    assert spent / 2 < row["gc_seconds_total"] <= spent
    assert watched(seen).foreign_hits == 0
    assert not pauses(seen, stranger)
    process.close()
    seen.until(lambda _: process.pid not in {one.pid for one in watched(seen).probes})
    assert not pauses(seen, process)


@pytest.mark.bpf
def test_a_forked_child_is_no_training_process(seen: Any, trainer: Any, emulated: Libraries) -> None:
    """A child inherits the breakpoints; what it collects is its own affair, and the parent's count goes on."""
    process = trainer()
    if begin(seen, emulated, process).reason == STRIPPED:
        pytest.skip(f"{sys.executable}: {STRIPPED}")
    process.do("fork(23)")
    process.do("collect(3)")
    (row,) = pauses(seen, process)
    assert row["gc_pauses_total"] == 3


@pytest.mark.bpf
def test_interpreters_of_this_machine(seen: Any, trainer: Any, emulated: Libraries) -> None:
    """Whatever versions from 3.8 on pyenv keeps here: each one's collections are counted exactly and timed."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    pythons = sorted(root.glob("versions/3.[89].*/bin/python3")) + sorted(root.glob("versions/3.1[0-4].*/bin/python3"))
    if not pythons:
        pytest.skip("pyenv keeps no interpreters here")
    processes = [trainer(python=str(python)) for python in pythons]
    for times, process in enumerate(processes, 5):
        found = begin(seen, emulated, process)
        spent = process.do(f"collect({times})")
        entry = watched(seen).entry(found)
        assert (found.state, int(entry["pauses"]), int(entry["lost"])) == (State.ATTACHED, times, 0), found
        place, size = found.answer.variables["_PyRuntime"]
        memory = Memory(process.pid)
        statistics = find_statistics(memory, int(found.file.addresses.split("-")[0], 16) + place, size)
        if statistics is None:
            assert "libpython3.14" in found.file.path  # it keeps no pointer by which to know the place
        else:
            before = count_collections(memory, statistics)
            process.do(f"collect({times})")
            assert count_collections(memory, statistics) - before == times
        memory.close()
        assert spent / 2 < int(entry["ns"]) / 1e9


@pytest.mark.bpf
def test_symbols_of_every_version_are_enough(seen: Any, trainer: Any, emulated: Libraries, tmp_path: Path) -> None:
    """Stand-ins with the symbols and the order of calls of each version are counted exactly and timed."""
    for minor in range(8, 15):
        process = trainer(stand_in(tmp_path, minor))
        process.do("libraries[2].run(1)")  # brings the words into memory, as every interpreter does at its start
        found = begin(seen, emulated, process)
        process.do(f"libraries[2].run({minor + 3})")
        entry = watched(seen).entry(found)
        assert (found.state, int(entry["pauses"]), int(entry["hits"])) == (State.ATTACHED, minor + 3, 2 * minor + 6), (
            found
        )
        assert int(entry["ns"]) > 0


@pytest.mark.bpf
def test_words_that_are_not_in_memory(seen: Any, trainer: Any, emulated: Libraries, tmp_path: Path) -> None:
    """A word that a probe cannot read is fetched once; until then its hits are lost, and counted as lost."""
    process = trainer(stand_in(tmp_path, 11, touch=False))
    found = begin(seen, emulated, process)
    process.do("libraries[2].run(3)")
    seen.read()
    process.do("libraries[2].run(4)")
    seen.read()
    process.do("libraries[2].run(5)")
    entry = watched(seen).entry(found)
    assert int(entry["hits"]) == 24 >= 2 * entry["pauses"] + entry["lost"]
    assert int(entry["pauses"]) >= 5


@pytest.mark.bpf
def test_a_return_probe_kills_no_process(seen: Any, trainer: Any, emulated: Libraries, tmp_path: Path) -> None:
    """A process that dies of the kernel's own call for probed returns lives on: where it would not, there is none."""
    process = trainer(stand_in(tmp_path, 12, bracket=False))
    process.do("forbid(335)")  # uretprobe, x86-64
    found = begin(seen, emulated, process)
    process.do("libraries[2].run(7)")
    process.do("libraries[2].run(4)")
    (row,) = pauses(seen, process)
    assert row["gc_pauses_total"] == 11
    assert found.plan.timed is (UretprobePolicy("auto", os.uname().release).refused(process.pid) == "")
    assert ("gc_seconds_total" in row) is found.plan.timed


@pytest.mark.bpf
def test_without_return_probes(watch: Any, trainer: Any, emulated: Libraries, tmp_path: Path) -> None:
    """Switched off, collections are counted, their length is unknown and not zero, and the reason is reported."""
    seen = watch(sources=SOURCES, return_probes="never")
    process, rows = trainer(stand_in(tmp_path, 9, bracket=False)), []
    begin(seen, emulated, process)
    rows += seen.rows.get("probe", [])
    process.do("libraries[2].run(13)")
    (row,) = pauses(seen, process)
    assert row["gc_pauses_total"] == 13
    assert "gc_seconds_total" not in row
    (state,) = [row for row in rows + seen.rows.get("probe", []) if row["library"] == "libpython3.9.so.1.0"]
    assert (state["state"], state["symbols"]) == ("on", 1)
    assert "return_probes is never" in state["reason"]


@pytest.mark.bpf
def test_a_stripped_interpreter_says_so(seen: Any, trainer: Any, emulated: Libraries, tmp_path: Path) -> None:
    """An interpreter without symbols and without trace points is counted by its own memory, not timed, and says so."""
    bare = tmp_path / "python3.77"
    real = Path(sys.executable).resolve()
    subprocess.run(["objcopy", "--strip-all", "--remove-section=.note.stapsdt", real, bare], check=True)
    process = trainer(python=str(bare))
    if any("libpython" in file.path for file in seen.context.processes.files(seen.context.processes.find(process.pid))):
        pytest.skip(f"{real} is a shell around a libpython")
    found = begin(seen, emulated, process)
    assert (found.state, found.reason.split(":")[0], found.probes) == (State.FROM_MEMORY, STRIPPED, [])
    (before,) = pauses(seen, process)
    process.do("collect(3)")
    (after,) = pauses(seen, process)
    assert after["gc_pauses_total"] - before["gc_pauses_total"] == 3
    assert "gc_seconds_total" not in after


@pytest.mark.bpf
def test_an_interpreter_that_was_touched(seen: Any, trainer: Any, emulated: Libraries, tmp_path: Path) -> None:
    """A file that has changed since it was read for an earlier process, be it only its time, is read again."""
    copy = Path(shutil.copy(Path(sys.executable).resolve(), tmp_path / "python3.78"))
    first = begin(seen, emulated, trainer(python=str(copy)))
    os.utime(copy, (1_000_000_007, 1_000_000_009))
    second = begin(seen, emulated, trainer(python=str(copy)))
    assert (second.state, second.reason) == (first.state, first.reason)
    assert first.answer.identity != second.answer.identity


@pytest.mark.bpf
def test_too_many_collections(seen: Any, trainer: Any, emulated: Libraries, tmp_path: Path) -> None:
    """Probes that are hit too often come off for a minute and say so; figures are missing meanwhile, and then go on."""
    process = trainer(stand_in(tmp_path, 14))
    process.do("libraries[2].run(1)")
    found = begin(seen, emulated, process)
    (source,) = [worker.source for worker in seen.reader.workers if worker.name == "python"]
    begun = time.time_ns()

    def rows(now: int) -> list[dict[str, Any]]:
        values = [dict(sample.values) for sample in source.read(now)]
        return [row for row in values if "3.14" in row.get("library", "") or row.get("gpu") == process.gpu]

    source.read(begun)
    seen.context.governor.share = 1e-4
    process.do("libraries[2].run(6000)")  # 12,000 hits, in what is taken for six seconds
    (state,) = rows(begun + 6_000_000_000)
    assert (state["library"], state["state"], state["symbols"]) == ("libpython3.14.so.1.0", "blocked", 0)
    assert "probes on its garbage collections are suspended: they take" in state["reason"]
    process.do("libraries[2].run(50)")
    assert not [row for row in rows(begun + 30_000_000_000) if "gpu" in row]
    assert found.state is State.RATE_LIMITED
    seen.context.governor.share = 0.01
    rows(begun + 70_000_000_000)
    process.do("libraries[2].run(5)")
    (row,) = rows(begun + 71_000_000_000)
    assert (found.state, row["gc_pauses_total"]) == (State.ATTACHED, 6005)
