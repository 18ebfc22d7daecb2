"""Attaching to places in a file: as links of newer kernels, and as the perf events of older ones."""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from elftools.elf.elffile import ELFFile

from bpf import uprobe
from bpf.loader import load
from bpf.uprobe import Point, attach, detach
from tests.conftest import PROBES

SOURCE = """
unsigned short watchers __attribute__((section(".probes"))) = 0;
long here(long depth) { return watchers + depth * 1000; }
"""


@dataclass
class Place:
    """A library with one function to probe, loaded into this process."""

    path: str
    function: int
    semaphore: int
    here: Any
    kernel: Any

    def hits(self) -> int:
        """How often the program ran for this process."""
        return int(self.kernel.maps["gc_entries"].rows()[3]["hits"])


@pytest.fixture(scope="module")
def kernel(probes_allowed: None) -> Iterator[Any]:
    """The programs, and an entry for this process."""
    loaded = load(("nccl", "cuda", "python"), PROBES)
    loaded.maps["gc_entry_of"].update(os.getpid().to_bytes(8, "little"), (3).to_bytes(4, "little"))
    yield loaded
    loaded.close()


@pytest.fixture(params=["link", "event"])
def place(request: pytest.FixtureRequest, kernel: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """The library, and the way of attaching to it."""
    if request.param == "event":

        def refuse(*_: Any) -> int:
            raise OSError(errno.EINVAL, "as kernels before 6.6 say")

        monkeypatch.setattr(uprobe, "bpf", refuse)  # what this module asks of the kernel; maps ask by themselves
    (tmp_path / "place.c").write_text(SOURCE)
    path = tmp_path / "place.so"
    subprocess.run(["cc", "-O1", "-fPIC", "-shared", "-o", path, tmp_path / "place.c"], check=True)
    with path.open("rb") as file:
        elf = ELFFile(file)
        table = elf.get_section_by_name(".symtab")
        places = {
            name: next(elf.address_offsets(table.get_symbol_by_name(name)[0]["st_value"]))
            for name in ("here", "watchers")
        }
    here = ctypes.CDLL(str(path)).here
    here.restype, here.argtypes = ctypes.c_long, [ctypes.c_long]
    entries = kernel.maps["gc_entries"]
    entries.update((3).to_bytes(4, "little"), bytes(entries.value_size))
    return Place(str(path), places["here"], places["watchers"], here, kernel)


@pytest.mark.bpf
def test_one_process_alone(place: Place) -> None:
    """A probe for one process is not hit by another one that runs the same function; a probe for all is."""
    program = place.kernel.programs["python_count"]
    with subprocess.Popen(["sleep", "300"]) as other:
        for pid, expected in ((other.pid, 0), (os.getpid(), 7), (0, 14)):
            probe = attach(program, place.path, Point(place.function), pid)
            for _ in range(7):
                place.here(1)
            detach([probe])
            assert place.hits() == expected
        other.kill()


@pytest.mark.bpf
def test_a_trace_point_is_switched_on(place: Place) -> None:
    """The counter of watchers is up in the one process as long as the probe is, and down again after."""
    point = Point(place.function, place.semaphore)
    assert place.here(2) == 2000
    probe = attach(place.kernel.programs["python_count"], place.path, point, os.getpid())
    assert place.here(3) == 3001
    detach([probe])
    assert place.here(5) == 5000


@pytest.mark.bpf
def test_returns(place: Place) -> None:
    """Entry and return of one function run two programs: what lies between them is timed."""
    programs, pid = place.kernel.programs, os.getpid()
    probes = [
        attach(programs["python_begin"], place.path, Point(place.function), pid),
        attach(programs["python_end"], place.path, Point(place.function, returns=True), pid),
    ]
    for _ in range(11):
        assert place.here(1) == 1000
    detach(probes)
    entry = place.kernel.maps["gc_entries"].rows()[3]
    assert (int(entry["hits"]), int(entry["pauses"]), int(entry["since"])) == (22, 11, 0)
    assert entry["ns"] > 0


@pytest.mark.bpf
def test_a_process_that_has_ended(place: Place) -> None:
    """Attaching to a process that is no more is a ProcessLookupError."""
    with subprocess.Popen(["true"]) as other:
        other.wait()
    with pytest.raises(ProcessLookupError):
        attach(place.kernel.programs["python_count"], place.path, Point(place.function), other.pid)


@pytest.mark.parametrize("room", [0, 3, 99])
def test_probes_come_off_with_few_threads(monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    """Each descriptor is closed once, also where no more threads can be had."""
    begin = threading.Thread.start
    begun: list[threading.Thread] = []
    closed: list[int] = []

    def start(thread: threading.Thread) -> None:
        if len(begun) == room:
            raise RuntimeError("can't start new thread")
        begun.append(thread)
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    with monkeypatch.context() as patch:
        patch.setattr(os, "close", closed.append)
        detach(range(1001, 1044))
    assert sorted(closed) == list(range(1001, 1044))
