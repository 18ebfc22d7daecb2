"""Counters of one RDMA port's network interfaces: pauses, losses and marks that the port's own files lack."""

from __future__ import annotations

import time
from pathlib import Path

from agent.rdma.counter_names import KNOWN
from agent.rdma.discovery import text_of
from agent.rdma.ethtool import Ethtool, is_reported

MOST_STATISTICS = 120
"""More statistics of one interface are not passed on."""
DEAR_NS = 100_000
"""Readings that cost more CPU time than this are made rarely: with many queues a driver adds up thousands of counts."""
RARELY = 4


class Statistics:
    """Reads some interfaces as one: what they count adds up. One that cannot be asked has nothing, and is named."""

    def __init__(self, ethtool: Ethtool, folders: list[Path]) -> None:
        self._ethtool = ethtool
        self._asked: list[tuple[str, int, dict[str, int]]] = []
        """Interface, how many statistics it has, and the places of those that are reported."""
        self.every = 1
        """Read it each so many readings."""
        self.complete = True
        """Whether each interface could be asked."""
        for folder in folders:
            try:
                self._open(folder)
            except OSError:  # of another network namespace, renamed at this moment, or without statistics
                self.complete = False

    @property
    def names(self) -> set[str]:
        """What is counted."""
        return {name for _, _, places in self._asked for name in places}

    def read(self) -> dict[str, int]:
        """Counts by name. Raises OSError when an interface is gone or counts other things than before."""
        started = time.thread_time_ns()
        values: dict[str, int] = {}
        for interface, count, places in self._asked:
            found = self._ethtool.values(interface, count)
            for name, place in places.items():
                values[name] = values.get(name, 0) + found[place]
        self.every = RARELY if time.thread_time_ns() - started > DEAR_NS * max(len(self._asked), 1) else 1
        return values

    def _open(self, folder: Path) -> None:
        address = bytes.fromhex(text_of(folder / "address").replace(":", "")) if folder.name else b""
        # The tree may be of another machine or network namespace, with an interface of the same name.
        if not address or self._ethtool.address(folder.name)[: len(address)] != address[:14]:
            raise OSError(f"{folder.name} is not an interface of this network namespace")
        names = self._ethtool.names(folder.name)
        reported = [place for place, name in enumerate(names) if is_reported(name)]
        reported.sort(key=lambda place: names[place] not in KNOWN)
        places = {names[place]: place for place in reported[:MOST_STATISTICS]}
        if places:
            self._asked.append((folder.name, len(names), places))
