"""Stacks into suspects: the machines that share a parallel group with the ranks that are elsewhere than all others.

ByteRobust (SOSP'25, arXiv 2509.16293), section on stack aggregation: outliers are mapped to machines, the parallel
group that they share is suspected as a whole. Where the job is slow rather than stopped, stacks are taken in five
rounds ten seconds apart; each round flags the group with most outliers, and the group flagged most is suspected.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Set
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np

from detector.explain.stack_groups import stack_groups
from detector.timeseries.rows import rows_of

if TYPE_CHECKING:
    import pyarrow as pa

    from detector.explain.rank_snapshot import Process

ROUNDS, APART_S = 5, 10.0


@dataclass(frozen=True, slots=True)
class Suspects:
    """What rounds of stacks say of a task."""

    rounds: int
    """Rounds with stacks of two ranks or more."""
    group: str = ""
    """The communicator flagged most; empty where outliers share none smaller than the task's."""
    flagged: int = 0
    """Rounds that flagged it, or, without one, rounds with an outlier among the machines."""
    machines: tuple[str, ...] = ()
    """The machines to evict: all of the group, innocent ones among them (over-eviction)."""
    outliers: Mapping[str, int] = ()  # type: ignore[assignment]
    """By machine, in how many rounds a rank of it was an outlier; the most first."""

    @property
    def sure(self) -> bool:
        """Whether more than half of the rounds agree."""
        return 2 * self.flagged > self.rounds

    def as_json(self) -> dict[str, object]:
        """The object of `suspects stacks --json`."""
        return {**asdict(self), "machines": list(self.machines), "sure": self.sure}


def suspects(
    stacks: pa.Table, groups: Mapping[str, Set[Process]], ranks: Mapping[Process, int], team: Collection[str]
) -> Suspects:
    """The suspects among the machines `team`, from rows of `stack`; rows without a round are one round.

    `groups` are the communicators with their processes; the largest is the task itself and suspects none.
    """
    whole = max((len(members) for members in groups.values()), default=0)
    smaller = {comm: members for comm, members in groups.items() if comm and len(members) < whole}
    votes, outliers, rounds = Counter[str](), Counter[str](), 0
    for table in _rounds(stacks):
        found = stack_groups(rows_of("stack", table), ranks, team)
        odd = {(place.machine, place.gpu, place.pid) for group in found if group.odd for place in group.places}
        rounds += sum(len(group.places) for group in found) > 1
        outliers.update({machine for machine, _, _ in odd})
        shared = {comm: len(members & odd) for comm, members in smaller.items() if members & odd}
        if shared:
            votes[min(shared, key=lambda comm: (-shared[comm], len(smaller[comm]), comm))] += 1
    seen = dict(outliers.most_common())
    if not votes:
        most = max(seen.values(), default=0)
        return Suspects(rounds, "", most, tuple(sorted(name for name in seen if seen[name] == most)), seen)
    comm, flagged = votes.most_common(1)[0]
    return Suspects(rounds, comm, flagged, tuple(sorted({machine for machine, _, _ in smaller[comm]})), seen)


def _rounds(stacks: pa.Table) -> list[pa.Table]:
    """The rows of each round, in order."""
    import pyarrow as pa

    if "round" not in stacks.column_names:
        return [stacks] if stacks.num_rows else []
    number = np.nan_to_num(np.asarray(stacks.column("round").cast("float64", safe=False).to_numpy(), np.float64))
    return [stacks.filter(pa.array(number == one)) for one in np.unique(number).tolist()]
