"""How emulated ranks train, and what a task must have for it."""

from __future__ import annotations

from typing import Final

TRAININGS: Final = ("ahead", "blocking", "graphs", "1f1b", "interleaved", "experts")


def lacks(training: str, pipeline: int, data: int) -> str:
    """What a task of so many pipeline stages and data ranks lacks for that training; empty: nothing."""
    if training in ("1f1b", "interleaved") and pipeline < 2:
        return "2 or more pipeline stages"
    if training == "experts" and data < 2:
        return "2 or more data ranks"
    return ""
