"""Hangs and a slow GPU on NVIDIA's own libnccl that nothing but NCCL shows: no watchdog, CUDA graphs, late agents.

`make bench ARGS="-k test_findings_4"`; PEERWATCH_NCCL is the version. Agents read neither NVML nor sysfs.
"""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from emulator.libraries.wheel import DEFAULT, find
from store.open import open_store
from tests.cli.service.demo.episodes import Episode, first_alarm, judged, nccl_fleet, record

pytestmark = [pytest.mark.bench, pytest.mark.bpf]
WITHIN_S, SLOW_WITHIN_S = 20.0, 30.0
HANGS = (Episode("rank_hang", None, "m02", 0, 40, 23, restarts=True), Episode("gpu_lost", None, "m03", 0, 50, 25))
LATE = (Episode("rank_hang", None, "m01", 0, 50, 25),)
SLOW = (Episode("slow_gpu", None, "m03", 0, 50, 30), Episode("slow_gpu", None, "m01", 0, 50, 30))


@pytest.fixture
def library() -> Path:
    """NVIDIA's library."""
    version = os.environ.get("PEERWATCH_NCCL") or DEFAULT
    found = find(version)
    if found is None:
        pytest.skip(f"libnccl {version} is not here: make nccl")
    return found


def lived(folder: Path, episodes: tuple[Episode, ...], library: Path, **more: Any) -> None:
    """Assert that of these episodes each is named first, in time, and till its end.

    Nothing is said of the health before them.
    """
    training, within = more.pop("training", "ahead"), more.pop("within", WITHIN_S)
    onsets = record(nccl_fleet(folder, (5, 1, 1, 1), 17, library, training, **more), list(episodes))
    verdicts = judged(folder)
    for onset in onsets:
        first = first_alarm(verdicts, onset, 0)
        assert first is not None, onset.episode.fault
        after = (first.time - onset.begin) / 1e9
        print(f"\n{onset.episode.fault:9} {after:4.1f} s  {first.level}  {first.message}", end="")
        assert (first.machine, first.device, after <= within) == (onset.episode.machine, "gpu:0", True)
        ended = [
            verdict.message for verdict in verdicts if verdict.level == "ok" and first.time < verdict.time < onset.end
        ]
        assert not ended  # a hang that lasts is one incident
    assert verdicts[0].time > onsets[0].begin


def column(folder: Path, name: str) -> set[Any]:
    """The values of a column of the table nccl that were recorded."""
    with closing(open_store(str(folder / "readings.db"))) as store:
        return set(store.read("nccl", 0, 1 << 62, (name,))[name].to_pylist())


def test_findings_4_3_hangs_without_a_watchdog(library: Path, probes_allowed: None, tmp_path: Path) -> None:
    """A rank, and then a GPU, that stops is named within 20 s where no framework asks NCCL after errors."""
    lived(tmp_path, HANGS, library, rank_options=("--no-watchdog",))


def test_findings_4_4_hangs_under_cuda_graphs(library: Path, probes_allowed: None, tmp_path: Path) -> None:
    """A rank, and then a GPU, that stops is named within 20 s where graphs replay the operations."""
    lived(tmp_path, HANGS, library, training="graphs")
    assert 1.0 in column(tmp_path, "replayed")


def test_findings_4_4_a_slow_gpu_under_cuda_graphs(library: Path, probes_allowed: None, tmp_path: Path) -> None:
    """A GPU 1.6 times as slow is named within 30 s where graphs replay the operations, on two machines in turn."""
    lived(tmp_path, SLOW, library, training="graphs", within=SLOW_WITHIN_S)
    assert 1.0 in column(tmp_path, "replayed")


def test_findings_4_2_a_hang_with_late_agents(library: Path, probes_allowed: None, tmp_path: Path) -> None:
    """A rank that stops is named within 20 s where the agents of all other machines came after their ranks."""
    lived(tmp_path, LATE, library, late_s=20.0)
    assert "memory" in column(tmp_path, "counted_from")
