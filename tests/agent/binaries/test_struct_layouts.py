"""Layouts shipped and cached on disk: which are used, and which are not."""

from __future__ import annotations

import copy
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from agent.binaries import elf_worker, opened_file, struct_layouts
from agent.binaries.struct_layouts import TABLE, Layout, LayoutCache, checked, shipped
from emulator.libraries.build import Libraries as Built


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of our own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "peerwatch" / "layouts"


@pytest.fixture
def layout() -> Layout:
    """A layout of a real library."""
    found: Layout = next(iter(json.loads(TABLE.read_text()).values()))["layout"]
    return copy.deepcopy(found)


def layout_of(path: Path) -> Layout | None:
    """What the reader of libraries says of one."""
    *_, last = elf_worker.answers(opened_file.open_library([str(path)]), ["ncclCommInitRank"], "ncclCommInitRank")
    found: Layout | None = last["layout"]
    return found


def test_a_second_look_needs_no_debug_information(home: Path, emulated: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    """A layout that was found is cached by build id and found again, also for a stripped copy of the same build."""
    assert not home.exists()
    first = layout_of(emulated.nccl)
    assert first is not None
    assert len(list(home.iterdir())) == 1
    monkeypatch.setattr(elf_worker, "find_layout", lambda _: None)
    assert layout_of(emulated.nccl) == first
    stripped = home.parent / "libnccl.so.2"
    subprocess.run(["strip", "-o", str(stripped), str(emulated.nccl)], check=True)
    assert layout_of(stripped) == first


def test_files_of_users_keep_to_themselves(home: Path, emulated: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that a user owns may lie about its build: what it says is believed of that very file alone."""
    mine, other = home.parents[3] / "mine.so", home.parents[3] / "other.so"
    for path in (mine, other):
        shutil.copy(emulated.nccl, path)
        os.chown(path, 1234, 1234)
    first = layout_of(mine)
    monkeypatch.setattr(elf_worker, "find_layout", lambda _: None)
    assert layout_of(mine) == first != layout_of(other)


def test_what_others_can_write_is_not_believed(home: Path, layout: Layout) -> None:
    """A folder or file open to others, another's file, a link, a pipe, too large a file: nothing is cached there."""
    cache = LayoutCache()
    cache.keep("b1", layout)
    assert cache.find("b1") == layout
    assert cache.find("b2") is None
    (file,) = home.iterdir()
    for spoil, mend in (
        (lambda: home.chmod(0o777), lambda: home.chmod(0o700)),
        (lambda: file.chmod(0o620), lambda: file.chmod(0o600)),
        (lambda: os.chown(file, 1234, 0), lambda: os.chown(file, os.geteuid(), 0)),
        (lambda: file.write_text(" " * (1 << 16) + json.dumps(layout)), lambda: file.write_text(json.dumps(layout))),
    ):
        spoil()
        assert cache.find("b1") is None
        mend()
        assert cache.find("b1") == layout
    file.rename(home / "elsewhere")
    file.symlink_to(home / "elsewhere")
    assert cache.find("b1") is None
    file.unlink()
    os.mkfifo(file)
    assert cache.find("b1") is None


DAMAGED = ("", "[]", "{", "[" * 100_000, '{"ncclComm": {"sizeof": 64}}')


@pytest.mark.parametrize("text", DAMAGED, ids=range(len(DAMAGED)))
def test_damaged_files(home: Path, layout: Layout, text: str) -> None:
    """What is not a layout is not believed."""
    LayoutCache().keep("b3", layout)
    (file,) = home.iterdir()
    file.write_text(text)
    assert LayoutCache().find("b3") is None


@pytest.mark.parametrize(
    ("structure", "member", "value"),
    [
        ("ncclComm", "rank", -8),
        ("ncclComm", "rank", 1 << 40),
        ("ncclComm", "sizeof", 1 << 30),
        ("ncclComm", "rank", 8.5),
        ("ncclComm", "rank", True),
        ("ncclComm", "password", 16),
        ("ncclNovel", "sizeof", 16),
    ],
)
def test_absurd_numbers(layout: Layout, structure: str, member: str, value: int) -> None:
    """A member outside of its structure, no whole number, and names that were not asked for."""
    assert checked(layout) == layout
    layout.setdefault(structure, {})[member] = value
    assert checked(layout) is None


def test_every_needed_member_counts(layout: Layout) -> None:
    """A layout without one member that is needed is none."""
    for structure, members in struct_layouts.STRUCTURES.items():
        for member in members:
            short = copy.deepcopy(layout)
            del short[structure][member]
            assert checked(short) is None


def test_the_cache_is_bounded(home: Path, layout: Layout) -> None:
    """The oldest go when many libraries have been seen."""
    for number in range(67):
        LayoutCache().keep(f"b{number}", layout)
    assert len(list(home.iterdir())) == 64
    assert LayoutCache().find("b66") == layout


def test_nowhere_to_keep(tmp_path: Path, layout: Layout) -> None:
    """A cache that cannot be written costs a look, no more."""
    (tmp_path / "file").write_text("")
    nowhere = LayoutCache(tmp_path / "file" / "layouts")
    nowhere.keep("b1", layout)
    assert nowhere.find("b1") is None


def test_findings_1_the_shipped_table() -> None:
    """At least five versions of NVIDIA's library are known at once, each with all that has to be known."""
    table = json.loads(TABLE.read_text())
    versions = [entry["version"] for entry in table.values()]
    assert len(set(versions)) == len(table) >= 5
    assert all(shipped(build) == entry["layout"] is not None for build, entry in table.items())
    assert shipped("00" * 20) is None


def test_findings_1_the_shipped_table_says_what_debug_information_says(real_nccl: Path) -> None:
    """NVIDIA's library is in the table by its build id, with the offsets that are read from it, and that gdb prints."""
    with real_nccl.open("rb") as file:
        library = ELFFile(file)
        known = shipped(elf_worker.find_build_id(library))
        assert known == elf_worker.find_layout(library) is not None
    if shutil.which("gdb") is None:
        pytest.skip("gdb is not installed: the offsets were compared with our own reading alone")
    places = [(name, member) for name, members in known.items() for member in members if member != "sizeof"]
    orders = [w for name, member in places for w in ("-ex", f"print/d (long) &((struct {name} *) 0)->{member}")]
    text = subprocess.run(["gdb", "-nx", "-batch", *orders, real_nccl], capture_output=True, text=True).stdout
    printed = [int(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith("$")]
    assert printed == [known[name][member] for name, member in places]
