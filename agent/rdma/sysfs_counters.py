"""The files of one RDMA port: those of compared columns stay open, the others are opened when they are due."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from agent.rdma.counter_names import FULL, KNOWN, Term, column_of, plan
from agent.rdma.discovery import Place, bytes_of, interfaces, listed, parse_count, parse_rate, parse_state, text_of

MOST_FILES = 200
"""More counters of one port are not passed on: each is a column of the store."""
SECOND = 10**9
PATIENCE_NS = 10 * SECOND
"""A file that failed is asked again after ten seconds, then after twice as long each time, up to LONGEST_NS.
Some drivers write to the kernel log each time that a function is asked for what it may not see."""
LONGEST_NS = 3600 * SECOND
_GONE = (errno.ENODEV, errno.ENOENT, errno.ESTALE, errno.ENXIO)


class PortGoneError(OSError):
    """The port was taken away."""


@dataclass(slots=True)
class Patience:
    """What failed, and when it is asked again."""

    until: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Name -> when it is due (Unix ns), and how long it waited for that."""

    def waits(self, name: str, now: int) -> bool:
        """Whether it is too early to ask; a clock that was set back is no reason to wait."""
        due, wait = self.until.get(name, (now, 0))
        return due - wait <= now < due

    def worked(self, name: str) -> None:
        """Forget that it failed."""
        self.until.pop(name, None)

    def failed(self, name: str, now: int) -> None:
        """Ask later; each time later."""
        wait = min(2 * self.until[name][1], LONGEST_NS) if name in self.until else PATIENCE_NS
        self.until[name] = (now + wait, wait)


class _Open(NamedTuple):
    """A file that is read each time: in part or in whole it gives one column."""

    descriptor: int
    column: str
    parse: Callable[[bytes], float]
    unit: int
    full: int
    """The value at which it says nothing, or -1."""


class PortFiles:
    """Reads one port; what fails waits alone. A file that may not be read, or has text for a number, harms no other."""

    def __init__(self, place: Place, now: int) -> None:
        """Raises OSError where the port is gone again."""
        self.place = place
        self._open: list[_Open] = []
        self._folder = os.open(place.folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._begin(place, now)
        except OSError:  # PortGoneError is one
            self.close()
            raise

    def _begin(self, place: Place, now: int) -> None:
        self.ethernet = text_of(place.folder / "link_layer") == "Ethernet"
        self.pci = (place.device / "device").resolve()
        self.elsewhere: dict[str, tuple[Term, ...]] = {}
        """Columns that statistics count, not files."""
        self._columns: set[str] = set()
        self._offered: set[str] = set()
        self._patience = Patience()
        self.whole: set[str] = set()
        self._paths = {name: str(path) for name, path in islice(self._files(), MOST_FILES)}
        self._hold("state", place.folder / "state", "link_up", parse_state)
        self._hold("rate", place.folder / "rate", "rate_bits_per_second", parse_rate)
        self._found = self.rest(now)

    def adopt(self, statistics: Collection[str]) -> None:
        """Choose what stands behind each column that has nothing yet: files that work, or these statistics."""
        offered = {*self._found, *statistics}
        if offered <= self._offered:
            return
        self._offered |= offered
        for column, terms in plan(offered).items():
            if column not in self._columns:
                self._columns.add(column)
                files = [term for term in terms if term.name in self._paths]
                for term in files:
                    self._hold(term.name, self._paths[term.name], column, parse_count, term.unit)
                self.whole |= {terms[0].name} if len(terms) == 1 else set()
                self.elsewhere |= {} if files else {column: terms}

    def read(self, now: int) -> dict[str, float]:
        """The columns that peers are compared by. One bad file takes its column along, no other.

        Raises PortGoneError when the port was taken away.
        """
        sums: dict[str, float] = {}
        bad = {name for name in self._patience.until if self._patience.waits(name, now)}
        pread = os.pread
        for descriptor, column, parse, unit, full in self._open:
            if column in bad:
                continue
            try:
                number = parse(pread(descriptor, 64, 0))
            except (OSError, ValueError) as error:
                self._note(column, error, now)
                bad.add(column)
                continue
            if number == full:
                bad.add(column)
            sums[column] = sums.get(column, 0) + number * unit
        for column in self._patience.until.keys() & sums.keys() - bad:
            self._patience.worked(column)
        for column in bad & sums.keys():
            del sums[column]
        return sums

    def rest(self, now: int) -> dict[str, int]:
        """Counters that no column has whole, by their files' names. Raises PortGoneError when the port is another."""
        if not self._is_there():
            raise PortGoneError(f"{self.place.name} is gone, or another by now")
        values: dict[str, int] = {}
        for name, path in self._paths.items():
            if name not in self.whole and not self._patience.waits(name, now):
                try:
                    values[name] = parse_count(bytes_of(path))
                except (OSError, ValueError) as error:
                    self._note(name, error, now)
                else:
                    self._patience.worked(name)
        self._found = values
        return values

    def close(self) -> None:
        """Let go of the files."""
        for descriptor in (self._folder, *(file.descriptor for file in self._open)):
            os.close(descriptor)
        self._open.clear()

    def _hold(self, name: str, path: Path | str, column: str, parse: Callable[[bytes], float], unit: int = 1) -> None:
        with suppress(OSError):  # what cannot be opened has no column
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            # The state is read last: a link that falls meanwhile is seen now and counted later, not vice versa.
            self._open.insert(0, _Open(descriptor, column, parse, unit, FULL.get(name, -1)))

    def _note(self, name: str, error: OSError | ValueError, now: int) -> None:
        if isinstance(error, OSError) and error.errno in _GONE and not self._is_there():
            raise PortGoneError(f"{self.place.name} is gone, or another by now") from None
        self._patience.failed(name, now)

    def _is_there(self) -> bool:
        """Whether the folder is still the one that was opened; while that is held, no other gets its number."""
        try:
            return os.path.samestat(os.fstat(self._folder), os.stat(self.place.folder))
        except OSError:
            return False

    def _files(self) -> Iterator[tuple[str, Path]]:
        """Every counter by its name, which the first of equal names keeps; those of the device go to its first port."""
        folders = [self.place.folder / "counters", self.place.folder / "hw_counters"]
        ports = [path.name for path in listed(self.place.device / "ports")]
        if ports and ports[0] == self.place.folder.name:
            folders.append(self.place.device / "hw_counters")
        seen = {"lifespan"}  # how long the driver keeps values, in ms
        for folder in folders:
            for path in sorted(listed(folder), key=lambda path: path.name not in KNOWN):
                if path.name not in seen and column_of(path.name):
                    seen.add(path.name)
                    yield path.name, path
        links = interfaces(self.place) if self.ethernet else []
        for name, folder in zip(("carrier_down_count", "carrier_down_count_2"), links, strict=False):
            yield name, folder / "carrier_down_count"
