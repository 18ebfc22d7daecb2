"""Probes on NCCL's calls are suspended where a process calls too often, and progress goes on from its memory."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent.nccl import probe_throttle
from agent.nccl.operation_count import CountTracker
from agent.nccl.probe_throttle import Calls, ProbeThrottle, above
from agent.probes.groups import CALLS
from agent.probes.library import Library
from agent.process.procfs import Process
from emulator.libraries.build import Libraries

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = """
import ctypes, json, sys, threading, time
from pathlib import Path
from emulator.training.ctypes_api import Calls, FLOAT32, SUM, UniqueId
calls, counts, stop = Calls(*map(Path, sys.argv[1:])), {}, threading.Event()
def make():
    unique = UniqueId()
    calls("ncclGetUniqueId", ctypes.byref(unique))
    counts[calls.make("ncclCommInitRank", 1, unique, 0)] = 0
def obey():
    for line in sys.stdin:
        make() if line == "make\\n" else stop.set()
make()
threading.Thread(target=obey, daemon=True).start()
print("ready", flush=True)
while not stop.is_set():
    for comm in list(counts):
        calls("ncclAllReduce", None, None, 3, FLOAT32, SUM, comm, None)
        counts[comm] += 1
    calls("cudaStreamSynchronize", None)
    time.sleep(0.004)
print(json.dumps(list(counts.values())), flush=True)
time.sleep(60)
"""


def one_library() -> tuple[Library, ProbeThrottle, str]:
    """A library that process 71 maps, and who decides about it in mode auto, from 100 calls a second on."""
    library = Library("8:1:2", "/x/libnccl.so.2", functions={CALLS: {64: "ncclAllReduce"}}, users={Process(71, 7)})
    attachments: Any = SimpleNamespace(libraries={"8:1:2": library})
    return library, ProbeThrottle(attachments, "auto", above(100.0)), "calls it"


def run(decides: ProbeThrottle, library: Library, span: tuple[int, int], rate: int, **facts: Any) -> list[int]:
    """Seconds of that span at which its probes were off; each second it does what is wanted."""
    off = []
    for second in range(*span):
        total = run.total = getattr(run, "total", 0) + rate
        rate_and_calls = {"followed": True, "unseen": 0} | facts
        decides.update(float(second), {71: Calls(total, **rate_and_calls)})
        library.suspended = frozenset(library.suspend)
        if library.suspended:
            off.append(second)
    return off


def test_frequent_calls_suspend_probes_which_resume_later() -> None:
    """Calls must come too often for seconds on end; then a look of seconds comes every ten minutes."""
    library, decides, why = one_library()
    assert run(decides, library, (0, 9), 90) == []
    off = run(decides, library, (9, 1300), 110)
    assert off[0] == 9 + probe_throttle.FAST_S
    assert why in library.words
    looks = [second for second in range(off[0], 1300) if second not in set(off)]
    assert 5 < len(looks) < 15
    assert len(off) > 1200
    assert decides.suspended(Process(71, 7))


def test_who_calms_down_is_counted_again() -> None:
    """A look that finds few calls lasts."""
    library, decides, _ = one_library()
    assert run(decides, library, (0, 20), 1000)
    off = run(decides, library, (20, 1500), 30)
    assert max(off) < 620
    assert not decides.suspended(Process(71, 7))


def test_a_communicator_that_was_made_is_looked_for_soon() -> None:
    """One that is announced while calls go uncounted brings the probes on at once, then ever more seldom."""
    library, decides, _ = one_library()
    run(decides, library, (0, 20), 1000)
    assert library.suspended
    off = run(decides, library, (20, 400), 1000, unseen=1)
    assert 20 not in off
    looks = [second for second in range(21, 400) if second not in set(off) and second - 1 in set(off)]
    apart = [later - one for one, later in pairwise(looks)]
    assert apart == sorted(apart)
    assert apart[0] < apart[-1]


def test_what_memory_does_not_tell_stays_probed() -> None:
    """A library with communicators that cannot be read retains its probes, and its reason says so."""
    library, decides, _ = one_library()
    assert run(decides, library, (0, 30), 1000, followed=False) == []
    assert "stay" in library.words


def test_a_count_goes_on_by_the_librarys_own() -> None:
    """Readings that agree, with operations between, carry it on; it never falls. Another pace is not believed."""
    count = CountTracker()
    for ours, own in ((7, 19), (9, 20), (9, 21), (15, 27), (16, 28)):
        count.compare(ours, own)
        assert not count.in_step
    count.compare(19, 31)
    assert count.in_step
    assert [count.carry(own) for own in (32, 31, 39)] == [20, 20, 27]
    slow = CountTracker()
    for ours in range(1, 60):
        slow.compare(3 * ours, 2 * ours)
    assert not slow.in_step


@contextmanager
def busy(cudart: Path, nccl: Path) -> Iterator[Any]:
    """A process with a communicator that calls hundreds of times a second."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    order = [sys.executable, "-c", SCRIPT, str(cudart), str(nccl)]
    with subprocess.Popen(order, cwd=ROOT, **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


class Totals:
    """The rows of one process, of which no count may fall."""

    def __init__(self, pid: int) -> None:
        self.pid, self.last = pid, dict[str, int]()

    def of(self, rows: dict[str, Any]) -> list[dict[str, Any]]:
        """Its rows in the order of their slots."""
        mine = [row for row in rows.get("nccl", ()) if row["pid"] == self.pid]
        for row in mine:
            if row["operations_total"] is not None:
                assert row["operations_total"] >= self.last.get(row["slot"], 0)
                self.last[row["slot"]] = row["operations_total"]
        return sorted(mine, key=lambda row: str(row["slot"]))


@pytest.mark.bpf
@pytest.mark.parametrize("mode", ["auto", "once"])
def test_progress_goes_on_without_probes(
    mode: str, watch: Any, emulated: Libraries, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls lose their probes, counts go on from memory and are exact, and one more communicator is learned."""
    for name, value in (("FAST_S", 0.5), ("FIRST_SAMPLE_S", 0.5), ("SAMPLE_S", 0.5)):
        monkeypatch.setattr(probe_throttle, name, value)
    with busy(emulated.cudart, emulated.nccl) as process:
        settings = {"nccl_probes": mode, "probe_share": 1e-5}
        seen, totals = watch(sources=("probe", "nccl"), **settings), Totals(process.pid)

        def followed(rows: dict[str, Any], count: int) -> bool:
            mine = totals.of(rows)
            suspended = [row for row in mine if row.get("bytes_total") is None and row["counted_from"] == "memory"]
            return len(suspended) == count and all(library.suspended for library in nccl())

        def nccl() -> list[Library]:
            return [one for one in seen.context.attachments.libraries.values() if one.path == str(emulated.nccl)]

        seen.until(lambda rows: followed(rows, 1))
        (library,) = nccl()
        assert "are suspended" in library.words
        before = dict(totals.last)
        seen.until(lambda rows: totals.of(rows) and totals.last["0"] > before["0"] + 50)
        assert 0 < len(library.probes) < len(library.functions[CALLS])
        process.stdin.write("make\n")
        process.stdin.flush()
        seen.until(lambda rows: followed(rows, 2))
        assert [(row["rank"], row["ranks"]) for row in totals.of(seen.rows)] == [(0, 1), (0, 1)]
        process.stdin.write("stop\n")
        process.stdin.flush()
        counts = json.loads(process.stdout.readline())
        assert [row["operations_total"] for row in totals.of(seen.read())] == counts


@pytest.mark.bpf
def test_a_stripped_library_stays_probed(
    watch: Any, emulated: Libraries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a layout there is nothing but probes: they stay however often it is called, and that is said."""
    monkeypatch.setattr(probe_throttle, "FAST_S", 0.5)
    nccl = tmp_path / "libnccl.so.2"
    subprocess.run(["objcopy", "-S", "-R", ".note.gnu.build-id", str(emulated.nccl), str(nccl)], check=True)
    with busy(emulated.cudart, nccl):
        seen = watch(sources=("probe", "nccl"), nccl_calls_per_second=5.0)
        rows = seen.until(lambda rows: [one for one in rows.get("probe", ()) if "stay" in (one["reason"] or "")])
        (library,) = [one for one in seen.context.attachments.libraries.values() if one.path == str(nccl)]
    assert rows[0]["state"] == "on"
    assert not library.suspended
    assert set(library.functions[CALLS]) <= set(library.probes)
