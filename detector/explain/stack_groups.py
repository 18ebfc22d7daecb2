"""Stacks of the ranks of a task that stands still, grouped: the few that are elsewhere than all others are named.

Stacks that are equal word for word are one group, the largest is what all do, small ones are outliers: after ByteRobust
(SOSP'25, arXiv 2509.16293).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass

import numpy as np

from detector.explain.rank_snapshot import Place, Process, in_order
from detector.timeseries.rows import Rows

_FEW = 4
"""A group is odd that has no more than one in so many ranks."""


@dataclass(frozen=True, slots=True)
class StackGroup:
    """Ranks with the same stack; the fields after `places` are those of the first one."""

    places: tuple[Place, ...]
    odd: bool
    time: int
    """Unix ns."""
    still_seconds: float
    form: str
    """python: frames of the interpreter; kernel: what the kernel tells; none: nothing could be read."""
    stack: str
    """One frame a line, the innermost first."""
    waits_in: str
    threads: str
    error: str

    def as_json(self) -> dict[str, object]:
        """The object that `show --json` prints of it."""
        values = {name: getattr(self, name) for name in ("form", "odd", "time", "still_seconds", "waits_in")}
        texts = {"stack": self.stack.splitlines(), "threads": self.threads.splitlines(), "error": self.error or None}
        return {**values, "ranks": [asdict(place) for place in self.places], **texts}


def stack_groups(rows: Rows, ranks: Mapping[Process, int], team: Collection[str]) -> tuple[StackGroup, ...]:
    """The groups of these machines, the largest first, from rows of `stack`; of several of one process the first."""
    texts = {name: rows.text(name) for name in ("form", "stack", "waits_in", "threads", "error")}
    pid, still = np.nan_to_num(rows.number("pid")).astype(np.int64).tolist(), rows.number("still_seconds")
    alike: dict[tuple[str, str], dict[Process, int]] = {}
    seen: set[Process] = set()
    for at, ident in enumerate(rows.ident.tolist()):
        machine, gpu = (*rows.idents[ident], "")[:2]
        who = machine, gpu, pid[at]
        if who not in seen and machine in team:
            seen.add(who)
            alike.setdefault((texts["form"][at], texts["stack"][at]), {})[who] = at
    read = [len(members) for (form, _), members in alike.items() if form != "none"]
    few, most = max(1, sum(read) // _FEW), max(read, default=0)
    found = []
    for (form, _), members in alike.items():
        first, size = next(iter(members.values())), len(members)
        values = {name: str(text[first]) for name, text in texts.items()}
        places = in_order([Place(*who, ranks.get(who)) for who in members])
        odd = form != "none" and size <= few and size < most
        found.append(StackGroup(places, odd, int(rows.time[first]), float(still[first]), **values))
    return tuple(sorted(found, key=lambda group: (group.form == "none", -len(group.places), group.places[0].rank or 0)))
