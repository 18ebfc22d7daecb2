"""Probes count exactly what the processes call."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.nccl.row import OPERATIONS as ALL_OPERATIONS
from emulator.libraries.build import Libraries
from tests.agent.conftest import Watch

MIX = (
    "ncclAllReduce=7,ncclAllReduceConfig=1,ncclReduceScatter=2,ncclAllGather=3,ncclBcast=1,ncclBroadcast=2,ncclReduce=1,"
    "ncclSend=4,ncclRecv=5,ncclAlltoAll=1,ncclGather=1,ncclScatter=2,ncclCommGetAsyncError=3,ncclGroupStart=1,ncclGroupEnd=1"
)
CALLS = 100_000
OPERATIONS = ALL_OPERATIONS[: ALL_OPERATIONS.index("AlltoAllv")]
"""Those of NVIDIA's library; what RCCL has besides, and one-sided ones, are called in a stand-in."""
STAND_IN = {
    "ncclAllToAll": ((0, 0, 17, 7, 0xA00, 0), "AlltoAll:f32:17", 68),
    "ncclAllToAllv": ((0, 0, 0, 0, 0, 0, 7, 0xB00, 0), "AlltoAllv:12:0", 0),
    "ncclAllReduceWithBias": ((0, 0, 19, 8, 0, 0xC00, 0, 0), "AllReduce:f64:19", 152),
    "ncclPutSignal": ((0, 23, 6, 1, 0, 0, 0, 0, 0, 0xD00, 0), "PutSignal:f16:23", 46),
    "ncclSignal": ((1, 0, 0, 0, 0xE00, 0), "Signal:i8:0", 0),
    "ncclWaitSignal": ((3, 0, 0xF00, 0), "WaitSignal:i8:0", 0),
}
"""By function its arguments, one of them the communicator; how it is shown, and its bytes."""
SCRIPT = """
import ctypes, json, os, sys
node, library = open(os.environ["EMULATED_DEVICES"] + "/nvidia0"), ctypes.CDLL(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
for name, arguments in json.loads(sys.argv[2]).items():
    getattr(library, name)(*map(ctypes.c_size_t, arguments))
print("done", flush=True)
sys.stdin.readline()
"""


def slots(seen: Any, pid: int) -> Any:
    """The kernel's entries of one process."""
    rows = seen.context.kernel.maps["slots"].rows()
    return rows[rows["tgid"] == pid].copy()


def of(pid: int, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of one process: other tasks may run on this machine."""
    return [row for row in rows if row["pid"] == pid]


def operations(counts: dict[str, int]) -> int:
    """Expected operations: Config forms are operations like others, and Bcast enters Broadcast, once."""
    names = [*OPERATIONS, *(f"{name}Config" for name in OPERATIONS), "Bcast"]
    return sum(counts.get(f"nccl{name}", 0) for name in names)


@pytest.fixture(scope="module")
def one_watch(probes_allowed: None) -> Iterator[Watch]:
    """One agent for several processes."""
    seen = Watch()
    yield seen
    seen.close()


@pytest.mark.bpf
@pytest.mark.parametrize("which", ["emulated", "nvidia"])
def test_every_call_counts_once(which: str, one_watch: Watch, caller: Any, request: pytest.FixtureRequest) -> None:
    """A hundred thousand calls are counted with none lost and none double, on NVIDIA's library too."""
    library: Path
    if which == "nvidia":
        library = request.getfixturevalue("real_nccl")
        libraries = [library]
    else:
        built: Libraries = request.getfixturevalue("emulated")
        library, libraries = built.nccl, [built.cudart, built.nccl]
    seen, process = one_watch, caller(*libraries, calls=CALLS, mix=MIX)
    seen.wait_attached(library)
    counts = process.call()
    assert sum(counts.values()) == CALLS
    (entry,) = slots(seen, process.pid)
    assert int(entry["operations"]) == operations(counts)
    assert int(entry["queries"]) == counts["ncclCommGetAsyncError"]
    (row,) = seen.until(lambda rows: [row for row in of(process.pid, rows["nccl"]) if row["counted_from"]])
    assert row["counted_from"] == "attach"
    assert row["operations_total"] == operations(counts)
    assert row["bytes_total"] == 4 * row["operations_total"]  # one float32 each
    assert row["groups_total"] == counts["ncclGroupStart"] > 1000
    assert row["lost_total"] == row["unsized_total"] == 0


@pytest.mark.bpf
@pytest.mark.parametrize("kind", OPERATIONS)
def test_every_operation_is_known_by_its_name(kind: str, one_watch: Any, caller: Any, real_nccl: Path) -> None:
    """Kind, datatype and count are read from where NVIDIA's library is handed them."""
    process = caller(real_nccl, calls=3, mix=f"nccl{kind}")
    one_watch.wait_attached(real_nccl)
    process.call()
    (row,) = one_watch.until(lambda rows: of(process.pid, rows.get("nccl", [])))
    assert row["operation"] == f"{kind}:f32:1"
    process.close()


@pytest.mark.bpf
def test_cuda_calls_count_where_they_are_switched_on(
    one_watch: Watch, watch: Any, caller: Any, emulated: Libraries
) -> None:
    """Synchronize calls are always counted, per-thread-stream twins too; copies and graph launches on request."""
    mix = "cudaStreamSynchronize=3,cudaStreamSynchronize_ptsz=2,cudaDeviceSynchronize=1,cudaGraphLaunch=4"
    quiet, loud = one_watch, watch(cuda_calls=("graphs",), sources=("probe", "nccl", "cuda"))
    process = caller(emulated.cudart, emulated.nccl, calls=1000, mix=mix)
    quiet.wait_attached(emulated.cudart)
    loud.wait_attached(emulated.cudart)
    counts = process.call()
    synchronize = sum(count for name, count in counts.items() if "Synchronize" in name)
    (row,), (full,) = of(process.pid, quiet.read()["cuda"]), of(process.pid, loud.read()["cuda"])
    assert row["synchronize_calls_total"] == full["synchronize_calls_total"] == synchronize == 600
    assert full["graph_launches_total"] == counts["cudaGraphLaunch"] == 400
    assert "graph_launches_total" not in row


@pytest.mark.bpf
def test_lost_hits_are_counted(watch: Any, caller: Any, emulated: Libraries) -> None:
    """When the kernel's table of communicators is full, hits are counted as lost and published."""
    seen = watch(sources=("probe", "nccl", "cuda"))
    stack, index = seen.context.kernel.maps["free_slots"], 0
    while True:  # take every free entry away
        try:
            stack.pop()
        except KeyError:
            break
        index += 1
    assert index == stack.capacity
    process = caller(emulated.cudart, emulated.nccl, calls=37)
    seen.wait_attached(emulated.nccl)
    process.call()
    processes = seen.context.kernel.maps["processes"].rows()
    assert processes["lost"][processes["tgid"] == process.pid].tolist() == [37]
    (kernel,) = [row for row in seen.read()["source"] if row["source"] == "kernel"]
    assert kernel["lost_total"] >= 37


@pytest.mark.bpf
def test_findings_4_5_other_spellings_and_one_sided_calls(one_watch: Watch, tmp_path: Path) -> None:
    """RCCL's spellings and one-sided operations are counted on the communicator that each is handed."""
    nccl, source = tmp_path / "libnccl.so.2", "".join(f"int {name}(void) {{ return 0; }}\n" for name in STAND_IN)
    subprocess.run(["cc", "-shared", "-O0", "-x", "c", "-o", str(nccl), "-"], input=source, text=True, check=True)
    calls = json.dumps({name: arguments for name, (arguments, _, _) in STAND_IN.items()})
    seen, order = one_watch, [sys.executable, "-c", SCRIPT, str(nccl), calls]
    with subprocess.Popen(order, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        seen.wait_attached(nccl)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "done\n"
        entries = slots(seen, process.pid)
        rows = seen.until(lambda rows: of(process.pid, rows.get("nccl", [])))
        libraries = seen.context.attachments.libraries.values()  # type: ignore[union-attr]
        process.kill()
    # Without a CUDA runtime that carries probes its waits are not seen, which is said.
    assert {row["host_blocked_seconds_total"] for row in rows} == {None}
    assert ["no waits of the host" in one.words for one in libraries if one.path == str(nccl)] == [True]
    assert sorted(entries["comm"].tolist()) == [0xA00, 0xB00, 0xC00, 0xD00, 0xE00, 0xF00]
    shown = sorted((row["operation"], row["bytes_total"]) for row in rows)
    assert shown == sorted((shown, size) for _, shown, size in STAND_IN.values())
