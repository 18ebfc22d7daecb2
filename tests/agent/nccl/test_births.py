"""Whichever call makes a communicator, the probes see who it is, without debug information, and count from there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agent.nccl.communicators import _digest
from emulator.libraries.build import Libraries

pytestmark = pytest.mark.bpf

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = """
import ctypes, json, sys
from pathlib import Path
from emulator.training.ctypes_api import Calls, FLOAT32, POINTER, SUM, UniqueId, communicator_config
calls, config, made = Calls(*map(Path, sys.argv[1:])), communicator_config(), {}
def name():
    unique = UniqueId()
    calls("ncclGetUniqueId", ctypes.byref(unique))
    return unique
def keep(call, comm, operations, unique=None):
    for _ in range(operations):
        calls("ncclAllReduce", None, None, 3, FLOAT32, SUM, comm, None)
    made[call] = [operations, bytes(unique.internal).hex() if unique else None]
print("ready", flush=True)
sys.stdin.readline()
one = name()
first = calls.make("ncclCommInitRank", 1, one, 0)
keep("ncclCommInitRank", first, 3, one)
two = name()
keep("ncclCommInitRankConfig", calls.make("ncclCommInitRankConfig", 1, two, 0, config), 5, two)
three = name()
keep("ncclCommInitRankScalable", calls.make("ncclCommInitRankScalable", 1, 0, 1, ctypes.byref(three), config), 7, three)
several = (POINTER * 1)()
calls("ncclCommInitAll", several, 1, None)
keep("ncclCommInitAll", several[0], 11)
part = POINTER()
calls("ncclCommSplit", first, 5, 0, ctypes.byref(part), config)
keep("ncclCommSplit", part, 13)
print(json.dumps(made), flush=True)
sys.stdin.readline()
"""


def test_every_way_to_be_born(watch: Any, emulated: Libraries, tmp_path: Path) -> None:
    """InitRank, its Config and Scalable forms, InitAll and Split: rank, size and identity come from the call itself."""
    nccl = tmp_path / "libnccl.so.2"
    subprocess.run(["objcopy", "-S", "-R", ".note.gnu.build-id", str(emulated.nccl), str(nccl)], check=True)
    seen, order = watch(), [sys.executable, "-c", SCRIPT, str(emulated.cudart), str(nccl)]
    with subprocess.Popen(order, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        seen.wait_attached(nccl)
        process.stdin.write("\n")
        process.stdin.flush()
        made: dict[str, Any] = json.loads(process.stdout.readline())
        mine = [row for row in seen.read()["nccl"] if row["pid"] == process.pid]
        process.kill()
    rows = {row["operations_total"]: row for row in mine}
    assert sorted(rows) == [3, 5, 7, 11, 13]
    assert {row["counted_from"] for row in mine} == {"birth"}
    assert len({row["comm"] for row in mine}) == 5
    for call, (operations, unique) in made.items():
        row = rows[operations]
        assert row["comm"] is not None
        assert (row["rank"], row["ranks"]) == ((None, None) if call == "ncclCommSplit" else (0, 1)), call
        if unique:
            assert row["comm"] == _digest(bytes.fromhex(unique)), call
