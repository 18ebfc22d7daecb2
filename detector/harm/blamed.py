"""When machines had incidents: what the pace of their task was then says nothing of other machines."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from detector.harm.pace import BLOCK_NS, SPAN_NS
from detector.model.verdict import Verdict
from detector.stats.arrays import Bools, Ints


@dataclass(slots=True)
class Blamed:
    """The spans of incidents, remembered for as long as the pace of that time is."""

    spans: dict[tuple[str, str], list[tuple[int, int]]] = field(default_factory=dict)
    """By task and machine, Unix ns."""

    def note(self, now: int, opened: Iterable[Verdict]) -> None:
        """Remember which incidents are open at `now` (Unix ns)."""
        for verdict in opened:
            spans = self.spans.setdefault((verdict.task, verdict.machine), [])
            if spans and spans[-1][0] == verdict.since:
                spans.pop()
            spans.append((verdict.since, now))
        oldest = now - SPAN_NS
        recent = ((key, [span for span in spans if span[1] > oldest]) for key, spans in self.spans.items())
        self.spans = {key: spans for key, spans in recent if spans}

    def tasks(self, after: int) -> dict[str, dict[str, int]]:
        """Tasks with an incident since `after` (Unix ns): by machine when its latest one began."""
        found: dict[str, dict[str, int]] = {}
        for (task, machine), spans in self.spans.items():
            if spans[-1][1] >= after:
                found.setdefault(task, {})[machine] = spans[-1][0]
        return found

    def before(self, verdict: Verdict, times: Ints) -> Bools:
        """[block]: whether the verdict's machine had an incident then that is over: that explains what the task did."""
        spans = self.spans.get((verdict.task, verdict.machine), [])
        over = [span for span in spans if span[1] < times[-1] - 2 * BLOCK_NS]
        found = np.zeros(len(times), bool)
        for start, end in over:
            found |= (times >= start) & (times <= end + BLOCK_NS)
        return found

    def elsewhere(self, verdict: Verdict, times: Ints) -> Bools:
        """[block]: whether another machine of the verdict's task had an incident at these times (Unix ns)."""
        found = np.zeros(len(times), bool)
        for (task, machine), spans in self.spans.items():
            for start, end in spans if task == verdict.task and machine != verdict.machine else ():
                found |= (times >= start) & (times <= end + BLOCK_NS)
        return found
