"""What a server answers."""

from __future__ import annotations

from dataclasses import dataclass

NO_ANSWER = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a write: HTTP status (0: no answer), why, and how long the server wants to be left alone."""

    status: int
    reason: str = ""
    retry_after_s: float | None = None

    @property
    def good(self) -> bool:
        """Whether the server has it."""
        return 200 <= self.status < 300
