"""The answer of a server to a write."""

from __future__ import annotations

from dataclasses import dataclass

NO_ANSWER = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """HTTP status (0: no answer), reason, and the seconds that the server asks to wait (Retry-After)."""

    status: int
    reason: str = ""
    retry_after_s: float | None = None

    @property
    def good(self) -> bool:
        """Whether the server has stored it."""
        return 200 <= self.status < 300
