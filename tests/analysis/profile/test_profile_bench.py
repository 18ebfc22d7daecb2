"""How often the slowed function is named, and what a window costs the processes that are sampled."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from agent.stacks.py_spy import spy_path
from agent.stacks.window import sample
from analysis.profile.patterns import abnormal, patterns
from analysis.profile.samples import samples_of

pytestmark = pytest.mark.bench

RANKS, RUNS, SECONDS = 4, 8, 4
WORK = """
import sys, time
def compute():
    time.sleep(0.03)  # for its GPU
    return sum(at * at for at in range(5_000))
def prepare():
    time.sleep(float(sys.argv[1]))
print("ready", flush=True)
steps, end = 0, time.monotonic() + float(sys.argv[2])
while time.monotonic() < end:
    prepare(); compute(); steps += 1
print(steps, flush=True)
"""


def started(program: Path, slow: int | None) -> list[subprocess.Popen[bytes]]:
    """Processes that wait for a GPU and prepare batches; one is slow in the latter."""
    program.write_text(WORK)
    pauses = ["0.05" if rank == slow else "0.004" for rank in range(RANKS)]
    commands = [[sys.executable, program, pause, str(SECONDS + 3)] for pause in pauses]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE) for command in commands]
    for one in running:
        assert one.stdout is not None
        assert one.stdout.readline() == b"ready\n"
    return running


def steps_of(running: list[subprocess.Popen[bytes]]) -> int:
    """Steps that all processes together made until their end."""
    return sum(int(one.communicate()[0]) for one in running)


def test_the_slowed_function_is_profiled(tmp_path: Path) -> None:
    """The slowed function of one of four processes is named first in every run; CPU and lost steps are printed."""
    named, cpu, lost = [], [], []
    for run in range(RUNS):
        slow = run % RANKS
        without = steps_of(started(tmp_path / "train.py", slow))
        running = started(tmp_path / "train.py", slow)
        taken = sample([one.pid for one in running], tmp_path, spy_path(), time.monotonic() + 1.0, SECONDS)
        ranks = [(f"rank {rank}", taken[one.pid].sampled) for rank, one in enumerate(running)]
        found = abnormal(patterns(samples_of(ranks, SECONDS)))
        lost.append(1 - steps_of(running) / without)
        cpu.append(sum(one.cpu_seconds for one in taken.values()) / SECONDS / RANKS)
        named.append(bool(found) and (found[0].rank, found[0].function) == (f"rank {slow}", "prepare (train.py)"))
    print(
        f"\n{sum(named)} of {RUNS} named; {np.median(cpu):.1%} of a core a process; "
        f"{np.median(lost):.1%} fewer steps (from {min(lost):.1%} to {max(lost):.1%})"
    )
    assert np.mean(named) >= 0.9
