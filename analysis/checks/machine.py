"""Checks of one machine, one after another, and their results as rows: one a check, and an event a failure."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from analysis.checks.child import run_tool
from analysis.checks.tools import CHECKS, SLOW, Check, Outcome, read_nccl
from store.schema.contract import ReadableStore
from store.schema.sample import Batch, Sample
from store.schema.time import SECOND

PAIRS = "pairs"
"""Name of the check between machines."""
TRAINS_NS = 120 * SECOND
"""A machine with NCCL or CUDA readings within this time trains."""
_CUDA_NODE = "nvidia-uvm"
"""The driver's node that every CUDA program has open, and no program that only asks NVML."""


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of one check of one machine."""

    machine: str
    check: str
    outcome: Outcome
    message: str
    value: float | None = None
    measure: str = ""
    device: str = ""
    duration_seconds: float = 0.0

    def as_json(self) -> dict[str, object]:
        """The object that `check --json` prints of it."""
        return asdict(self)


def run_checks(machine: str, checks: Iterable[Check], limit_s: float | None = None) -> Iterator[Result]:
    """The result of each check on this host, as it ends; `limit_s` replaces the checks' own time limits (seconds)."""
    for check in checks:
        command = check.command()
        if command is None:
            yield Result(machine, check.name, "missing", f"not installed; get it: {check.remedy}")
            continue
        try:
            ended = run_tool(command, limit_s or check.limit_s)
        except OSError as error:
            yield Result(machine, check.name, "missing", f"{command[0]} cannot be run: {error.strerror}")
            continue
        if ended.code is None:
            words = f"cut off after {ended.seconds:.0f} s: it hangs, or needs a longer --limit"
            yield Result(machine, check.name, "cut off", words, duration_seconds=ended.seconds)
            continue
        try:
            found = check.read(ended)
        except (ValueError, KeyError, TypeError, IndexError):
            yield Result(machine, check.name, "error", f"{command[0]}: its output cannot be read")
            continue
        details = found.outcome, found.message, found.value, found.measure, found.device
        yield Result(machine, check.name, *details, ended.seconds)


def run_pairs(machines: Sequence[str], limit_s: float = 120.0) -> Iterator[Result]:
    """All-gather between neighbours in a ring of machines, by mpirun and nccl-tests; a result a machine.

    A machine fails where each of its pairs fails, or has less than 0.9 of the median bandwidth of the pairs without
    it: the sound neighbour of a faulty machine has another pair (ByteRobust, SOSP'25, checks at the stop of a job).
    """
    mpirun, tool = shutil.which("mpirun"), shutil.which("all_gather_perf")
    if mpirun is None or tool is None:
        words = f"mpirun or all_gather_perf is not installed; {CHECKS['nccl'].remedy}, and apt-get install openmpi-bin"
        yield from (Result(name, PAIRS, "missing", words) for name in machines)
        return
    ring = [(one, machines[(at + 1) % len(machines)]) for at, one in enumerate(machines)]
    speed: dict[tuple[str, str], float] = {}
    pairs = ring if len(machines) > 2 else ring[:1]
    for pair in pairs:
        command = [mpirun, "-np", "2", "-H", ",".join(pair), tool, "-b", "128M", "-e", "128M", "-c", "1", "-g", "1"]
        ended = run_tool(command, limit_s)
        found = read_nccl(ended)
        speed[pair] = found.value or 0.0 if found.outcome == "passed" else 0.0
    if not any(speed.values()):
        words = f"no pair gave a result: {' '.join(found.message.split())}"
        yield from (Result(name, PAIRS, "error", words) for name in machines)
        return
    for name in machines:
        usual = median([value for pair, value in speed.items() if name not in pair] or speed.values())
        mine = {pair: value for pair, value in speed.items() if name in pair}
        best = max(mine.values())
        words = ", ".join(f"{'–'.join(pair)} {value:g} GB/s" for pair, value in mine.items())
        outcome: Outcome = "passed" if best > 0 and best >= SLOW * usual else "failed"
        yield Result(name, PAIRS, outcome, f"all-gather: {words}", best, "GB/s")


def batches(results: Iterable[Result], now: int) -> list[Batch]:
    """Rows of `check` at `now` (Unix ns); a failure is a critical event too, which the detector takes as evidence."""
    out = []
    for one in results:
        values = {name: value for name, value in asdict(one).items() if name != "machine" and value not in (None, "")}
        rows = [Sample("check", values)]
        if one.outcome == "failed":
            text = {"source": "check", "code": f"check:{one.check}", "severity": "crit", "device": one.device}
            rows.append(Sample("event", {**text, "message": f"check {one.check} failed: {one.message}"}))
        out.append(Batch(one.machine, now, tuple(rows)))
    return out


def trains(store: ReadableStore, machine: str, now: int) -> bool:
    """Whether agents read NCCL or CUDA calls of a machine within the last two minutes before `now` (Unix ns)."""
    tables = [table for table in ("nccl", "cuda") if table in store.tables()]
    return any(machine in store.read(table, now - TRAINS_NS, now, ()).column("machine").to_pylist() for table in tables)


def cuda_processes(proc: Path = Path("/proc")) -> tuple[list[int], bool]:
    """Processes of this host with CUDA at work, and whether all processes could be asked."""
    found, whole = list[int](), True
    for folder in proc.glob("[0-9]*"):
        try:
            for link in (folder / "fd").iterdir():
                if os.readlink(link) == f"/dev/{_CUDA_NODE}":
                    found.append(int(folder.name))
                    break
        except PermissionError:
            whole = False
        except OSError:
            continue  # it has ended
    return found, whole


def has_gpus(root: Path = Path("/")) -> bool:
    """Whether this host has a GPU that CUDA can use."""
    try:
        return stat.S_ISCHR((root / "dev" / _CUDA_NODE).stat().st_mode)
    except OSError:
        return False
