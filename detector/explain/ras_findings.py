"""What NCCL's own status (RAS) said of a task that stands still, in words, beside what the probes saw."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from detector.timeseries.rows import Rows


def ras_findings(rows: Rows, team: Collection[str], comms: Collection[str]) -> Iterator[tuple[int, str]]:
    """Time (Unix ns) and words, from rows of `ras` of a task's machines and communicators.

    One port may be shared by several tasks, so an answer may be about another one's communicators: these are left out.
    """
    columns = ("comm", "missing", "behind", "failed", "error")
    comm, missing, behind, failed, error = (rows.text(name) for name in columns)
    answered, ranks = rows.number("answered"), rows.number("ranks")
    for at in np.flatnonzero(np.isin(rows.who(0).astype(str), list(team))).tolist():
        if error[at]:
            yield int(rows.time[at]), f"NCCL gave no status: {error[at]}"
        elif comm[at] in comms:
            said = [words for words in (missing[at], behind[at], failed[at]) if words]
            story = "; ".join(said) or "all launched the same, none failed"
            head = f"NCCL's status of communicator {comm[at][:8]}, {answered[at]:.0f} of {ranks[at]:.0f} ranks"
            yield int(rows.time[at]), f"{head}: {story}"
