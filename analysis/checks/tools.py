"""Active checks of a machine: which tool does each, how to get it, its command, and what its output says."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from analysis.checks.child import Ended

Outcome = Literal["passed", "failed", "error", "cut off", "missing"]
"""`failed`: the tool has found a fault; `error`: it ended without a result, which may be the tool's own fault."""
_LEVEL = "2"
SLOW = 0.9
"""A GPU with less than this share of the median of its machine's GPUs is slow."""
_NUMBER = r"(\d{1,15}(?:\.\d{0,15})?(?:[eE][+-]?\d{1,3})?)"
_BANDWIDTH = re.compile(rf"#\s*Avg bus bandwidth\s*:\s*{_NUMBER}(?!\S)")
_WRONG = re.compile(r"#\s*Out of bounds values\s*:\s*(\d{1,18})")
_IB = re.compile(rf"^\s*\d+\s+\d+\s+{_NUMBER}\s+{_NUMBER}\s+{_NUMBER}(?!\S)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Reading:
    """What a tool's output says."""

    outcome: Outcome
    message: str
    value: float | None = None
    measure: str = ""
    """Unit of the value."""
    device: str = ""
    """The device that failed, such as gpu:3."""


class _BurnIn(msgspec.Struct):
    """What `analysis.checks.gemm` prints, by number of the GPU."""

    tflops: Annotated[dict[int, float], msgspec.Meta(min_length=1)]
    wrong: dict[int, int]


@dataclass(frozen=True, slots=True)
class Check:
    """One check."""

    name: str
    what: str
    remedy: str
    """How to get the tool."""
    command: Callable[[], Sequence[str] | None]
    """The command; None where the tool is not installed."""
    read: Callable[[Ended], Reading]
    limit_s: float


def _on_path(program: str, *words: str) -> Callable[[], Sequence[str] | None]:
    def command() -> Sequence[str] | None:
        found = shutil.which(program)
        return [found, *words] if found else None

    return command


def _gemm() -> Sequence[str] | None:
    return [sys.executable, "-I", "-m", "analysis.checks.gemm"] if find_spec("torch") else None


def _nccl() -> Sequence[str] | None:
    found = shutil.which("all_reduce_perf")
    gpus = sum(path.name[6:].isdecimal() for path in Path("/dev").glob("nvidia*"))
    return [found, "-b", "256M", "-e", "256M", "-c", "1", "-g", str(max(1, gpus))] if found else None


def read_dcgm(ended: Ended) -> Reading:
    """`dcgmi diag -j`: any result with status Fail fails; the first with its GPU and first warning is named."""
    start = ended.output.find("{")
    try:
        tree = json.loads(ended.output[start:]) if start >= 0 else None
        failed = _failures(tree, "")
    except (ValueError, RecursionError):
        tree, failed = None, []
    if failed:
        test, result = failed[0]
        gpu = str(result.get("gpu_id", result.get("gpu_ids", result.get("entity_id", "")))).split(",")[0]
        words = result.get("warnings") or result.get("info") or ""
        device = f"gpu:{gpu}" if gpu.isdecimal() else ""
        return Reading("failed", f"{len(failed)} results failed; {test}: {_line(words)}", device=device)
    if ended.code or tree is None:
        return Reading("error", f"exit code {ended.code}: {_last(ended.output)}")
    return Reading("passed", f"dcgmi diag -r {_LEVEL} passed")


def _failures(tree: Any, test: str) -> list[tuple[str, dict[str, Any]]]:
    if isinstance(tree, list):
        return [found for one in tree for found in _failures(one, test)]
    if not isinstance(tree, dict):
        return []
    test = str(tree.get("name", test))
    mine = [(test, tree)] if str(tree.get("status", "")).lower() == "fail" else []
    return mine + [found for one in tree.values() for found in _failures(one, test)]


def read_gemm(ended: Ended) -> Reading:
    """The burn-in's JSON line: a GPU with results that differ between equal products, or that is slow, fails."""
    line = next((line for line in reversed(ended.output.splitlines()) if line.startswith("{")), "")
    if ended.code or not line:
        return Reading("error", f"exit code {ended.code}: {_last(ended.output)}")
    try:
        found = msgspec.json.decode(line, type=_BurnIn)
    except (msgspec.MsgspecError, RecursionError) as error:
        return Reading("error", f"its last line is no result: {_line(error)}")
    speed = found.tflops
    usual = sorted(speed.values())[len(speed) // 2]
    for gpu, wrong in found.wrong.items():
        if wrong:
            words = f"{wrong} products of equal matrices differ: silent data corruption"
            return Reading("failed", words, float(wrong), "products", f"gpu:{gpu}")
    slow = min(speed, key=lambda gpu: speed[gpu])
    if speed[slow] < SLOW * usual:
        words = f"{speed[slow]:.0f} TFLOP/s where the median of {len(speed)} GPUs is {usual:.0f}"
        return Reading("failed", words, speed[slow], "TFLOP/s", f"gpu:{slow}")
    return Reading("passed", f"{len(speed)} GPUs, {usual:.0f} TFLOP/s each, equal results", usual, "TFLOP/s")


def read_nccl(ended: Ended) -> Reading:
    """nccl-tests: wrong values or an error fail; the value is the average bus bandwidth in GB/s."""
    speed, wrong = _BANDWIDTH.search(ended.output), _WRONG.search(ended.output)
    value = float(speed[1]) if speed else None
    if wrong and int(wrong[1]):
        return Reading("failed", f"{wrong[1]} wrong values", value, "GB/s")
    if ended.code or value is None:
        return Reading("error", f"exit code {ended.code}: {_last(ended.output)}", value, "GB/s" if value else "")
    return Reading("passed", f"average bus bandwidth {value:g} GB/s", value, "GB/s")


def read_ib(ended: Ended) -> Reading:
    """`ib_write_bw --report_gbits`: the value is the average bandwidth in Gbit/s; no row of results fails."""
    rows = _IB.findall(ended.output)
    if ended.code or not rows:
        return Reading("error", f"exit code {ended.code}: {_last(ended.output)}")
    value = float(rows[-1][1])
    return Reading(
        "passed" if value > 0 else "failed", f"average {value:g} Gbit/s through the port and back", value, "Gbit/s"
    )


def _line(words: Any) -> str:
    if isinstance(words, list):
        words = words[0] if words else ""
    if isinstance(words, dict):
        words = words.get("warning", words.get("info", ""))
    return " ".join(str(words).split())[:200]


def _last(output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip()]
    return _line(lines[-1]) if lines else "no output"


_PAIR = 'port=$((20000 + $$ % 20000)); "$0" --report_gbits -D 3 -p $port >/dev/null & sleep 1; '
_PAIR += '"$0" --report_gbits -D 3 -p $port 127.0.0.1; code=$?; wait; exit $code'


def _loopback() -> Sequence[str] | None:
    found = shutil.which("ib_write_bw")
    return ["/bin/sh", "-c", _PAIR, found] if found else None


CHECKS: dict[str, Check] = {
    check.name: check
    for check in (
        Check(
            "dcgm",
            "NVIDIA's diagnostics of GPUs, memory, PCIe and NVLink",
            "apt-get install datacenter-gpu-manager-4-core (NVIDIA's repository)",
            _on_path("dcgmi", "diag", "-r", _LEVEL, "-j"),
            read_dcgm,
            900.0,
        ),
        Check(
            "gemm",
            "matrix products on every GPU: speed against the others, equal results",
            f"{sys.executable} -m pip install torch",
            _gemm,
            read_gemm,
            300.0,
        ),
        Check(
            "nccl",
            "all-reduce over the machine's GPUs: right values, bandwidth",
            "build https://github.com/NVIDIA/nccl-tests and put all_reduce_perf on PATH",
            _nccl,
            read_nccl,
            300.0,
        ),
        Check(
            "ib",
            "RDMA writes through a port of this machine to itself",
            "apt-get install perftest",
            _loopback,
            read_ib,
            60.0,
        ),
    )
}
