"""Publishes a state when it changes, and once in a while when it does not, so that a reader need not go back far."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

REPEAT_NS = 60_000_000_000

Key = TypeVar("Key", bound=Hashable)
State = TypeVar("State")


class OnChange(Generic[Key, State]):
    """Remembers the last states that were offered; a key that one call leaves out is forgotten."""

    def __init__(self, repeat_ns: int = REPEAT_NS) -> None:
        self._repeat_ns = repeat_ns
        self._repeated_at: int | None = None
        self.last: Mapping[Key, State] = {}
        """The states of the last call."""

    def repeats(self, now: int) -> bool:
        """Whether every state is due at that time (Unix ns); a clock that was set back is no reason to wait."""
        return self._repeated_at is None or not 0 <= now - self._repeated_at < self._repeat_ns

    def due(self, now: int, states: Mapping[Key, State]) -> list[Key]:
        """The keys to publish at that time: all of them at a repeat, else those that are new or have changed."""
        repeat = self.repeats(now)
        keys = [key for key, state in states.items() if repeat or key not in self.last or self.last[key] != state]
        self.last = dict(states)
        if repeat:
            self._repeated_at = now
        return keys
