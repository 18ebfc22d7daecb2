"""Posts lines to a server, in halves where it does not take them whole, and finds the lines that it refuses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from store.line_protocol.write import pack
from store.transport.answers import Answer

Refused = list[tuple[bytes, str]]
"""Lines that a server refused, each with the reason."""


class Timed(Protocol):
    """The configuration of a server that the sender needs."""

    @property
    def post_seconds(self) -> float:
        """Period of the posts."""


class Server(Protocol):
    """Receives packed lines: an InfluxDB server, or a stream."""

    @property
    def address(self) -> object:
        """Its address; str() of it is for people."""

    @property
    def config(self) -> Timed:
        """How to reach it."""

    def write(self, body: bytes) -> Answer:
        """Send packed lines. Never raises for what server or network do."""

    def explain(self, answer: Answer) -> str:
        """An answer in one line that names cause and mend."""

    def began(self) -> str:
        """Its start time in its own words; empty if unknown. Raises StoreError."""

    def close(self) -> None:
        """Release the connections."""


class UnsentError(OSError):
    """Nothing can be sent now; `answer` says why."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.reason)
        self.answer = answer


def post(server: Server, lines: Sequence[bytes]) -> Refused:
    """Send these lines, in halves where the server does not take them whole; returns those it refused, and why.

    Too many (413) are halved, bad ones (400, 422) are searched for. Raises UnsentError for every other answer.
    """
    answer = server.write(pack(lines))
    if answer.good:
        return []
    if answer.status not in (400, 413, 422):
        raise UnsentError(answer)
    if len(lines) == 1 or f"dropped={len(lines)}" in answer.reason.split():
        return [(line, f"{answer.status}: {answer.reason}") for line in lines]
    middle = len(lines) // 2
    return post(server, lines[:middle]) + post(server, lines[middle:])
