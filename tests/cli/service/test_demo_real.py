"""Demos on NVIDIA's own libnccl, one at a time: its proxy threads spin."""

from __future__ import annotations

from pathlib import Path

import pytest

from emulator.libraries.wheel import place
from tests.cli.service.test_demo import tried

VERSION = "2.27.3"


@pytest.mark.alone
@pytest.mark.bpf
@pytest.mark.parametrize(
    ("fault", "training"), [("slow_gpu", "ahead"), ("rank_hang", "ahead"), ("none", "ahead"), ("slow_gpu", "blocking")]
)
def test_findings_4_1_faults_are_named_on_the_real_library(
    fault: str, training: str, probes_allowed: None, tmp_path: Path
) -> None:
    """A verdict names the right machine on NVIDIA's libnccl within 30 s of the onset; a healthy run has none."""
    if not place(VERSION).exists():
        pytest.skip(f"libnccl {VERSION} is not here: make nccl")
    words = ("--nccl", VERSION, "--training", training)
    code, outcome = tried(tmp_path / "demo", 31, fault, *words)
    assert (code, outcome["correct"]) == (0, True), outcome
    named = [verdict["machine"] for verdict in outcome["verdicts"]]
    assert named[:1] == ([] if fault == "none" else [outcome["fault"]["machine"]])
