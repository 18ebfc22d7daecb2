"""Faults on NVIDIA's own libnccl, one fleet at a time: its proxy threads spin."""

from __future__ import annotations

from pathlib import Path

import pytest

from emulator.libraries.wheel import place
from tests.cli.service.demo.series import Series
from tests.cli.service.demo.test_demo import in_time, outcomes

VERSION = "2.27.3"
pytestmark = [pytest.mark.alone, pytest.mark.bpf]


@pytest.fixture
def library() -> Path:
    """NVIDIA's library."""
    found = place(VERSION)
    if not found.exists():
        pytest.skip(f"libnccl {VERSION} is not here: make nccl")
    return found


def test_findings_4_1_faults_are_named_on_the_real_library(library: Path, probes_allowed: None, tmp_path: Path) -> None:
    """Where hosts enqueue ahead, health has no verdict, and a slow GPU and a hang are named within 30 s."""
    series = Series(("slow_gpu", "rank_hang"), (6, 1, 1, 1), 30.0, 31, str(library), "ahead")
    found = outcomes(tmp_path / "series", series, "--nccl", VERSION, "--training", series.training)
    assert found["none"]["verdicts"] == []
    for kind in series.kinds:
        assert (found[kind]["correct"], in_time(found[kind])) == (True, True), found[kind]
