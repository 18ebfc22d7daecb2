"""RDMA ports, InfiniBand and RoCE: /sys/class/infiniband, and the statistics of the network interfaces behind it."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path

from agent.context import Context
from agent.rdma.counter_names import column_of
from agent.rdma.discovery import Place, find, interfaces, text_of
from agent.rdma.ethtool import Ethtool
from agent.rdma.ethtool_counters import Statistics
from agent.rdma.link_state import Link
from agent.rdma.sysfs_counters import PortFiles, PortGoneError
from store.schema.sample import Sample
from store.schema.time import SECOND

log = logging.getLogger(__name__)

MOST_PORTS = 32
"""More ports are not read: each holds some twenty files open, and a process may commonly open 1024."""
REST_NS = 10 * SECOND
"""How often to read the counters that peers are not compared by, and to search new ports."""


@dataclass(slots=True)
class _Port:
    """One port that is there."""

    files: PortFiles
    statistics: Statistics
    due: int
    """When the rest is read next (Unix ns)."""


class Rdma:
    """Reads all ports; those that come and go are followed."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._class = root / "sys/class/infiniband"
        self._ethtool: Ethtool | None = None
        self._ports: dict[str, _Port] = {}
        self._links: dict[str, Link] = {}
        self._listing: list[str] = []
        self._look = 0
        self._turn = 0
        self._warned = False

    def read(self, now: int) -> list[Sample]:
        """A row for each port, and events of links that went down, came up or flapped."""
        self._turn += 1
        samples = self._gone(now, self._find(now))
        for place, (name, port) in enumerate(list(self._ports.items())):
            try:
                values = self._values(now, place, port)
            except PortGoneError:
                samples += self._gone(now, [name])
                self._look = 0
                continue
            samples.append(Sample("rdma", {"port": name, **values}))
            link, up, downs = self._links[name], values.get("link_up"), values.get("link_downed_total")
            happened = link.follow(None if up is None else bool(up), downs)
            samples += [_event(name, *_explained(port.files.place, event)) for event in happened]
        return samples

    @property
    def unavailable_reason(self) -> str:
        """Why there are no ports to read now; empty: there are."""
        return "" if self._ports else f"there is no RDMA port under {self._class}"

    def close(self) -> None:
        """Let go of all files."""
        for port in self._ports.values():
            port.files.close()
        self._ports.clear()
        if self._ethtool is not None:
            self._ethtool.close()

    def _values(self, now: int, place: int, port: _Port) -> dict[str, float]:
        values, counts = port.files.read(now), dict[str, int]()
        if (self._turn + place) % port.statistics.every == 0:
            try:
                counts = port.statistics.read()
            except OSError:  # renamed, or with other queues than before
                port.statistics = Statistics(self._tool(), [])
                port.statistics.complete = False
        for column, terms in port.files.elsewhere.items():
            parts = [counts[term.name] * term.unit for term in terms if term.name in counts]
            if parts:
                values[column] = sum(parts)
        if not port.due - REST_NS <= now < port.due:  # due, or the clock was set back
            port.due = now + REST_NS - (now - port.due) % REST_NS
            for name, number in (counts | port.files.rest(now)).items():
                own = column_of(name)
                if own and name not in port.files.whole:
                    values.setdefault(own, number)
            if not port.statistics.complete:
                port.statistics = Statistics(self._tool(), interfaces(port.files.place))
            port.files.adopt(port.statistics.names)
        return values

    def _find(self, now: int) -> list[str]:
        """Open ports that came; the names of those that went."""
        try:
            listing = os.listdir(self._class)
        except OSError:  # no RDMA here, or not yet
            listing = []
        if listing == self._listing and self._look - REST_NS <= now < self._look:
            return []
        self._listing, self._look = listing, now + REST_NS
        places = find(self._root) if listing else []
        if len(places) > MOST_PORTS and not self._warned:
            self._warned = True
            log.warning("of %d RDMA ports the first %d are read", len(places), MOST_PORTS)
        found = {place.name: place for place in places[:MOST_PORTS]}
        for order, (name, place) in enumerate(found.items()):
            if name not in self._ports:
                self._open(place, now, order * REST_NS // MOST_PORTS)
        return [name for name in self._ports if name not in found]

    def _open(self, place: Place, now: int, later: int) -> None:
        try:
            files = PortFiles(place, now)
        except (PortGoneError, FileNotFoundError, NotADirectoryError):
            return
        links = interfaces(place) if files.ethernet else []
        statistics = Statistics(self._tool(), links)
        files.adopt(statistics.names)
        self._ports[place.name] = _Port(files, statistics, now + later)
        self._links.setdefault(place.name, Link())
        if len(self._links) > 8 * MOST_PORTS:  # virtual functions may come under new names for ever
            self._links = {name: link for name, link in self._links.items() if name in self._ports}

    def _gone(self, now: int, names: list[str]) -> list[Sample]:
        """Forget ports that went, but not that their links were up."""
        samples = []
        for name in names:
            files = self._ports.pop(name).files
            files.close()
            link = self._links[name]
            link.downs, link.seen = None, 0
            if (files.pci / "driver").exists():  # handed to another namespace: the device is well
                samples.append(_event(name, "port_gone", "info", "the port was taken to another namespace"))
                del self._links[name]
            else:
                said = [("link_down", "crit", "the port is gone: its device or driver was taken away")]
                samples += [_event(name, *event) for event in said if link.up is not False]
                link.up = False
        return samples

    def _tool(self) -> Ethtool:
        self._ethtool = self._ethtool or Ethtool()
        return self._ethtool


def _explained(place: Place, event: tuple[str, str, str]) -> tuple[str, str, str]:
    """An InfiniBand link that is physically up waits for the fabric's subnet manager: no fault of this machine's."""
    if event[0] == "link_down" and text_of(place.folder / "phys_state").startswith("5:"):
        return "link_down", "warn", "the link is up but carries nothing: the port waits for the subnet manager"
    return event


def _event(port: str, code: str, severity: str, message: str) -> Sample:
    device = f"rdma:{port}"
    values = {"source": "rdma", "code": code, "device": device, "severity": severity, "message": f"{port}: {message}"}
    return Sample("event", values)


def open_source(context: Context) -> Rdma:
    """The source, ready to read; ports may come later."""
    return Rdma(Path(context.config.root))
