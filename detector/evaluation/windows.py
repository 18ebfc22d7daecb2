"""Counting by windows of time: each machine in each window is faulty or not, and named or not.

So are public data sets scored, where a label is a stretch of samples and not an incident.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from detector.model.verdict import Verdict

Spans = Sequence[tuple[str, int, int]]
"""Machine, start and end (Unix ns)."""


@dataclass(frozen=True, slots=True)
class Windows:
    """Numbers of windows: faulty and named, healthy and named, faulty and not named."""

    right: int
    wrong: int
    missed: int


def opened(verdicts: Iterable[Verdict], last: int) -> Spans:
    """From when to when a machine was named at warn or crit; what is still open at the end ends at `last`."""
    since: dict[tuple[str, str], int] = {}
    spans: list[tuple[str, int, int]] = []
    for v in verdicts:
        key = v.task, v.machine
        if v.level in ("ok", "note"):
            if key in since:
                spans.append((v.machine, since.pop(key), v.time))
        else:
            since.setdefault(key, v.time)
    return spans + [(machine, start, last) for (_, machine), start in since.items()]


def windows(
    machines: int,
    faults: Spans,
    named: Spans,
    unjudged: Iterable[tuple[int, int]],
    span: tuple[int, int],
    width: int,
) -> Windows:
    """Counts over windows of `width` ns from the recording's start; those that touch `unjudged` are left out."""
    count = max(1, -(-(span[1] - span[0]) // width))
    number = {name: at for at, name in enumerate(sorted({name for name, *_ in (*faults, *named)}))}

    def marked(spans: Spans) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
        out = np.zeros((max(machines, len(number)), count), bool)
        for name, start, end in spans:
            if end >= span[0] and start <= span[1]:
                out[number[name], max(0, (start - span[0]) // width) : (end - 1 - span[0]) // width + 1] = True
        return out

    judged = np.ones(count, bool)
    for start, end in unjudged:
        judged[max(0, (start - span[0]) // width) : max(0, (end - 1 - span[0]) // width + 1)] = False
    true, said = marked(faults)[:, judged], marked(named)[:, judged]
    return Windows(int((true & said).sum()), int((~true & said).sum()), int((true & ~said).sum()))
