"""How much work each user and each process has caused lately, so that the cheapest come first."""

from __future__ import annotations

import time

HALF_LIFE_S = 60.0
_REMEMBERED = 4096

Owner = tuple[int, int]
"""User and process number."""


class Costs:
    """Seconds of work by user and by process; what is long ago counts less."""

    def __init__(self) -> None:
        self._spent: dict[Owner, tuple[float, float]] = {}  # a user under process number 0; seconds, and when

    def add(self, owner: Owner, seconds: float) -> None:
        """Charge a process and its user."""
        now = time.monotonic()
        if len(self._spent) >= _REMEMBERED:
            costliest = sorted(self._spent, key=lambda one: self._lately(one, now), reverse=True)[: _REMEMBERED // 2]
            self._spent = {one: self._spent[one] for one in costliest}
        for one in ((owner[0], 0), owner):
            self._spent[one] = self._lately(one, now) + seconds, now

    def rank(self, owner: Owner) -> tuple[float, float]:
        """What sorts owners: the cheapest user first, and of one user the cheapest process."""
        now = time.monotonic()
        return self._lately((owner[0], 0), now), self._lately(owner, now)

    def _lately(self, owner: Owner, now: float) -> float:
        seconds, at = self._spent.get(owner, (0.0, now))
        return float(seconds * 0.5 ** ((now - at) / HALF_LIFE_S))
