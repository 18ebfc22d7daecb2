"""The interpreter of one training process: the state of the probes on its garbage collection."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from agent.binaries.symbol_lookup import LookupResult
from agent.process.memory import Memory
from agent.process.procfs import MappedFile, Process
from agent.python_gc.cpython import Plan


class State(Enum):
    """What the agent does about one interpreter."""

    LOOKUP = auto()
    """Its files are being read."""
    NO_PYTHON = auto()
    ATTACHED = auto()
    FROM_MEMORY = auto()
    """Collections are counted in its memory, without probes."""
    RATE_LIMITED = auto()
    """Its probes are off for a while: they were hit too often."""
    BLOCKED = auto()


_NEXT: dict[State, frozenset[State]] = {
    State.LOOKUP: frozenset(State),
    State.NO_PYTHON: frozenset(),
    State.ATTACHED: frozenset({State.RATE_LIMITED, State.BLOCKED}),
    State.FROM_MEMORY: frozenset(),
    State.RATE_LIMITED: frozenset({State.ATTACHED, State.BLOCKED, State.LOOKUP, State.NO_PYTHON}),
    State.BLOCKED: frozenset(),
}
"""The states that may follow each state."""


@dataclass
class GcProbe:
    """The interpreter of one training process, and the probes on it."""

    process: Process
    candidates: list[MappedFile]
    state: State = State.LOOKUP
    reason: str = ""
    """Why the state is not ATTACHED."""
    file: MappedFile | None = None
    """The interpreter, once it is known, and what was read of it."""
    answer: LookupResult = field(default_factory=lambda: LookupResult(None))
    plan: Plan = field(default_factory=Plan)
    index: int = -1
    """Its entry in the kernel's array."""
    probes: list[int] = field(default_factory=list)
    checked_at: int = 0
    """When its rate of hits was last checked, Unix ns."""
    tries: int = 0
    counted: Any = None
    """What the kernel had counted by then."""
    memory: Memory | None = None
    statistics: int = 0
    """Where the interpreter's own count lies, when there is nothing to probe."""
    fetched: int = 0
    """Hits that could not be classified, when the word that classifies them was last fetched."""

    def transition(self, state: State, reason: str = "") -> None:
        """Enter a state, for that reason. Raises ValueError for a state that cannot follow this one."""
        if state not in _NEXT[self.state]:
            raise ValueError(f"{state.name} does not follow {self.state.name}")
        self.state, self.reason = state, reason
