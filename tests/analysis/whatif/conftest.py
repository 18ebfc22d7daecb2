"""A job analysed from its file, as a person would."""

from __future__ import annotations

from pathlib import Path

from analysis.whatif.meta_file import JobMeta
from analysis.whatif.model import build_model
from analysis.whatif.slowdown import Slowdown, analyse
from analysis.whatif.trace_file import read_trace


def measured(file: Path) -> Slowdown:
    """The measures of this trace, with the notes of the reader."""
    read = read_trace(file)
    found = analyse(build_model(read.found), JobMeta())
    found.notes[:0] = read.notes
    return found
