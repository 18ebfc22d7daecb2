"""Connected components: members that groups join, such as processes by communicators."""

from __future__ import annotations

import numpy as np

from detector.stats.arrays import Ints


def connected_components(member: Ints, group: Ints, members: int) -> Ints:
    """[member]: the smallest number of all members that groups join with it; a pair: a member is in a group."""
    label = np.arange(members)
    while True:
        smallest = np.full(int(group.max(initial=-1)) + 1, members)
        np.minimum.at(smallest, group, label[member])
        joined = label.copy()
        np.minimum.at(joined, member, smallest[group])
        if (joined == label).all():
            return label
        label = joined
