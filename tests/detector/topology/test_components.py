"""Connected components beside a search that visits one member after the other."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from detector.topology.components import connected_components

MEMBERS = 9


def searched(pairs: list[tuple[int, int]]) -> list[int]:
    """The smallest member that each one reaches."""
    label = []
    for start in range(MEMBERS):
        seen, queue = {start}, [start]
        while queue:
            groups = {group for member, group in pairs if member == queue[-1]}
            queue.pop()
            new = {member for member, group in pairs if group in groups} - seen
            seen |= new
            queue.extend(new)
        label.append(min(seen))
    return label


@given(st.lists(st.tuples(st.integers(0, MEMBERS - 1), st.integers(0, 12)), max_size=14))
def test_members_that_groups_join_have_one_label(pairs: list[tuple[int, int]]) -> None:
    """The label is the smallest number that can be reached over shared groups, in whatever order pairs come."""
    member, group = np.array(pairs, np.int64).reshape(-1, 2).T
    assert connected_components(member, group, MEMBERS).tolist() == searched(pairs)
    assert connected_components(member[::-1], group[::-1], MEMBERS).tolist() == searched(pairs)
