"""Whether a process has just called an operation where, in all the time before, it called another one.

A training program calls its operations in an order that repeats. What follows two given operations is learned from the
past; a call that differs from it, where it was always the same few, is a departure. Each process is compared with
itself, so this tells which of two ranks that called different collectives is the odd one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
_RECENT = 16
"""The last operations that are judged: a program may run that far ahead of the one that hangs."""
_MIN_PAST = 64
_MIN_TIMES = 5
"""Two operations that came together less often tell nothing of the next."""
_MAX_FOLLOWERS = 1 / 3
"""What follows is predictable where there are fewer different followers than this share of the times."""
_MIX = np.int64(0x9E3779B1)


def departs(signatures: Ints) -> bool | None:
    """Whether one of the last operations of a process follows the two before it as none did; None: not predictable.

    `signatures` [operation] are hashes of communicator, kind, count and datatype, in the order of the calls.
    """
    if len(signatures) < _MIN_PAST + _RECENT:
        return None
    context, follower = signatures[:-2] * _MIX + signatures[1:-1], signatures[2:]
    past, past_follower = context[:-_RECENT], follower[:-_RECENT]
    predictable = False
    for place in range(len(context) - _RECENT, len(context)):
        known = past_follower[past == context[place]]
        if len(known) < _MIN_TIMES or len(np.unique(known)) > _MAX_FOLLOWERS * len(known):
            continue
        if follower[place] not in known:
            return True
        predictable = True
    return False if predictable else None
