"""The page of the emulated fleet tells of every fault."""

from __future__ import annotations

import re
from pathlib import Path

from emulator.shared.faults import KINDS

ROOT = Path(__file__).resolve().parents[2]


def test_every_fault_is_explained() -> None:
    """Each fault has a row of its own: what it does, and what shows it."""
    documented = re.findall(r"^\| `(\w+)` \| .+ \| .+ \|$", (ROOT / "docs/emulator.md").read_text(), re.MULTILINE)
    assert sorted(documented) == sorted(set(KINDS) - {"none"})
