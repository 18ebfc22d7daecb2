"""What the kernel's programs must not do, whatever they count."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TEXTS = sorted(Path(__file__).resolve().parents[2].glob("bpf/programs/*.bpf.[ch]"))


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_no_program_prints_or_wakes(path: Path) -> None:
    """A debug print takes a lock at each hit, and to wake a reader costs 80 times what the probe does."""
    text = path.read_text()
    assert "trace_printk" not in text
    submits = re.findall(r"\bringbuf_(?:submit|output)\(([^;]*)\);", text)
    assert all("BPF_RB_NO_WAKEUP" in submit for submit in submits)
    assert not re.search(r"\bperf_submit\b|\bBPF_PERF_OUTPUT\b", text)
