"""DCGM by `dcgmi dmon`: what its lines say, and a child that is silent, talks nonsense, ends or floods.

The program here is a stand-in after NVIDIA's user guide: the real one was not at hand.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.config import AgentConfig
from agent.context import Context, SourceUnavailableError
from agent.nvml.dcgm.dmon import FIELDS, Dmon, find_program, parse_line
from agent.sampling import loop
from agent.sampling.reader import Reader, Worker
from agent.sources.dcgm import Dcgm, open_source
from store.schema.sample import Sample

HEAD = "#Entity   NVIDX   GRACT   SMACT   SMOCC   TENSO   DRAMA   FP64A   FP32A   FP16A\\nID"
ROWS = (
    "GPU 0     1       0.914   0.871   0.402   0.613   0.288   0.000   0.051   N/A\\nGPU 1 0 0.5 0.4 0.3 0.2 0.1 0 0 0"
)


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Callable[[str], Dmon]]:
    """A stand-in for dcgmi with this body, and what reads it."""
    opened: list[Dmon] = []

    def make(body: str) -> Dmon:
        program = tmp_path / "dcgmi"
        program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/arguments\n{body}\n')
        program.chmod(0o755)
        opened.append(Dmon(str(program), 1.0))
        return opened[-1]

    yield make
    for dmon in opened:
        dmon.close()


def until(dmon: Dmon, holds: Callable[[dict[str, dict[str, float]]], bool]) -> dict[str, dict[str, float]]:
    """Read on until this is true."""
    limit = time.monotonic() + 60
    while not holds(found := dmon.read(time.monotonic())):
        assert time.monotonic() < limit, (found, dmon.error)
        time.sleep(0.02)
    return found


def test_lines() -> None:
    """A line gives NVML's index and the ratios; headings, other entities, blank values and other forms give nothing."""
    assert parse_line("GPU 0     7       0.914   N/A   0   1   1.000   0.25   N/A   0.5") == (
        "7",
        {
            "graphics_active_ratio": 0.914,
            "sm_occupancy_ratio": 0.0,
            "tensor_active_ratio": 1.0,
            "dram_active_ratio": 1.0,
            "fp64_active_ratio": 0.25,
            "fp16_active_ratio": 0.5,
        },
    )
    for line in ("#Entity NVIDX", "ID", "", "GPU-I 0 1 0 0 0 0 0 0 0 0", "GPU 0 1 0.5", "GPU 0 x 0 0 0 0 0 0 0 0"):
        assert parse_line(line) is None
    assert parse_line("GPU 3 2 140737488355328 nan -1 1e300 N/A N/A N/A N/A") == ("2", {})


def test_gpus_go_by_nvmls_index(made: Callable[[str], Dmon], tmp_path: Path) -> None:
    """DCGM's GPU 0 may be NVML's GPU 1; the fields asked for are those of the columns, each second."""
    dmon = made(f"printf '{HEAD}\\n{ROWS}\\n'; exec sleep 60")
    found = until(dmon, lambda found: len(found) == 2)
    assert found["1"]["tensor_active_ratio"] == 0.613
    assert found["0"]["tensor_active_ratio"] == 0.2
    assert "fp16_active_ratio" not in found["1"]
    assert (tmp_path / "arguments").read_text() == f"dmon -e 52,{','.join(map(str, FIELDS))} -d 1000\n"
    assert dmon.read(time.monotonic() + 9.0) == {}  # nothing is repeated for long


def test_no_host_engine(made: Callable[[str], Dmon]) -> None:
    """Where no nv-hostengine answers, what dcgmi says is the reason, and it is tried again more and more seldom."""
    dmon = made("echo 'Error: unable to establish a connection to the specified host: localhost' >&2; exit 2")
    source = Dcgm(dmon)
    until(dmon, lambda _: bool(dmon.error))
    with pytest.raises(OSError, match="unable to establish a connection"):
        source.read(0)
    begun = time.monotonic()
    assert dmon._retry_at > begun
    dmon.read(begun + 3.0)  # started again
    assert dmon._retry_at >= begun + 3.0 + 4.0
    source.close()


def test_a_flood_and_nonsense(made: Callable[[str], Dmon]) -> None:
    """A program that prints without an end, or text that is none, costs no time and no memory."""
    dmon = made("cat /dev/urandom | tr -d '\\n'")
    for _ in range(30):
        begun = time.monotonic()
        assert dmon.read(begun) == {}
        assert time.monotonic() - begun < 5.0
        time.sleep(0.01)
    assert len(dmon._text) <= 1 << 16


def test_many_gpus_are_bounded(made: Callable[[str], Dmon]) -> None:
    """No more than 64 GPUs are believed."""
    dmon = made('i=0; while [ $i -lt 200 ]; do echo "GPU $i $i 0 0 0 0 0 0 0 0"; i=$((i+1)); done; exec sleep 60')
    until(dmon, lambda found: len(found) >= 64)
    assert len(dmon.read(time.monotonic())) == 64


def test_columns_join_the_row_of_nvml(made: Callable[[str], Dmon]) -> None:
    """NVML's row of a GPU and DCGM's columns are one row."""

    class Nvml:
        def read(self, now: int) -> list[Sample]:
            return [Sample("gpu", {"gpu": "1", "power_watts": 301.5})]

        def close(self) -> None:
            """Nothing."""

    dmon = made(f"printf '{ROWS}\\n'; exec sleep 60")
    until(dmon, lambda found: len(found) == 2)
    reader = Reader([Worker("gpu", Nvml()), Worker("dcgm", Dcgm(dmon))])
    batch = loop.read_once(reader, time.time_ns(), "m7", 5.0)
    rows = {str(sample.values["gpu"]): sample.values for sample in batch.samples if sample.table == "gpu"}
    assert (rows["1"]["power_watts"], rows["1"]["dram_active_ratio"]) == (301.5, 0.288)
    reader.close()


def test_without_dcgm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where dcgmi is not installed the source says which package it is in."""
    monkeypatch.setenv("PATH", str(tmp_path))
    if not find_program():
        with pytest.raises(SourceUnavailableError, match="datacenter-gpu-manager"):
            open_source(Context(AgentConfig()))
