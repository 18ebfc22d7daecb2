"""RDMA ports as the kernel shows them under /sys/class/infiniband: trees that stand still or that a fleet drives."""

from __future__ import annotations

import os
import shutil
import struct
from dataclasses import dataclass, field
from pathlib import Path

from emulator.hardware.rdma_vendors import BITS, VENDORS, Vendor
from emulator.libraries.build import ETHTOOL

WIDTH = 40
"""Bytes of a live file: a value is written over the last in one piece, and what is shorter is filled with newlines."""
NAME_BYTES = 32
STATES = {"NOP": 0, "DOWN": 1, "INIT": 2, "ARMED": 3, "ACTIVE": 4, "ACTIVE_DEFER": 5}
PHYSICAL = {"DOWN": "3: Disabled", "INIT": "5: LinkUp", "ARMED": "5: LinkUp", "ACTIVE": "5: LinkUp"}


class PortError(ValueError):
    """No such port, word or state."""


@dataclass
class _Port:
    """One port: where its files lie, and what they count."""

    index: int
    device: Path
    port: Path
    interface: str
    counts: dict[str, int] = field(default_factory=dict)
    parts: dict[str, float] = field(default_factory=dict)
    """By word, what was added and does not make a whole unit yet."""
    paths: dict[str, Path] = field(default_factory=dict)
    statistics: dict[str, int] = field(default_factory=dict)
    """Where each ethtool statistic stands."""
    state: str = "ACTIVE"
    rate: str = ""


class Ports:
    """`count` ports of one vendor, one to a device, under `root`/sys/class/infiniband.

    `live`: values can be changed under a reader that keeps the files open. Else the files are as short as the kernel's.
    Every count begins with a number of its own. Raises PortError for an unknown vendor.
    """

    def __init__(self, root: Path, count: int, vendor: str = "mlx5_ib", live: bool = True, seed: int = 1) -> None:
        if vendor not in VENDORS:
            raise PortError(f"no vendor {vendor!r}: known are {', '.join(VENDORS)}")
        self.root, self.vendor, self._live = root, VENDORS[vendor], live
        self._next = 1000 * seed
        self._ports: dict[str, _Port] = {}
        for index in range(count):
            self._make(index)

    @property
    def names(self) -> tuple[str, ...]:
        """The ports, as the `rdma` table names them: `mlx5_0/1`."""
        return tuple(self._ports)

    @property
    def environment(self) -> dict[str, str]:
        """For a reader that finds the emulated libraries: the stand-in for ethtool, and where its statistics lie."""
        return {"LD_PRELOAD": ETHTOOL, "EMULATED_ETHTOOL": str(self.root / "ethtool")}

    def interface(self, port: str) -> str:
        """The network interface of that port; empty where it has none."""
        return self._port(port).interface

    def count(self, port: str, name: str) -> int:
        """What a file or statistic counts, by its own name."""
        return self._port(port).counts[name]

    def add(self, port: str, **increments: float) -> None:
        """Let counters grow, by words: transmit_bytes, cnp_sent, link_downed, … (a column of `rdma` without `_total`).

        Words that the vendor does not count are ignored; fractions of a unit carry over. Raises PortError.
        """
        for word, increment in increments.items():
            if word not in WORDS:
                raise PortError(f"no word {word!r}: known are {', '.join(sorted(WORDS))}")
            if word in self.vendor.words:
                name, unit = self.vendor.words[word]
                parts = self._port(port).parts.get(word, 0.0) + increment
                self._port(port).parts[word] = parts % unit
                self.put(port, name, self.count(port, name) + int(parts // unit))

    def put(self, port: str, name: str, value: int) -> None:
        """Set a file or statistic, by its own name, to a count; a narrow one stays at its largest."""
        place, value = self._port(port), min(value, (1 << BITS.get(name, 64)) - 1)
        place.counts[name] = value
        if name in place.statistics:
            with (self.root / "ethtool" / place.interface).open("r+b") as file:
                os.pwrite(file.fileno(), struct.pack("<Q", value), place.statistics[name])
        else:
            self.write(place.paths[name], str(value))

    def set(self, port: str, rate: float | None = None, state: str | None = None) -> None:
        """Set the rate (bits per second) or the state (ACTIVE, DOWN, INIT, ARMED); going down is counted."""
        place = self._port(port)
        if rate is not None:
            gigabits = f"{rate / 1e9:g}"
            self._text(place, "rate", f"{gigabits} Gb/sec ({place.rate.partition('(')[2] or '4X)'}")
        if state is None or state == place.state:
            return
        if state not in STATES:
            raise PortError(f"no state {state!r}: known are {', '.join(STATES)}")
        if state == "DOWN":
            self.flap(port)
        place.state = state
        self._text(place, "state", f"{STATES[state]}: {state}")
        self._text(place, "phys_state", PHYSICAL.get(state, "2: Polling"))

    def flap(self, port: str) -> None:
        """Count a link that went down and came back between two looks."""
        place = self._port(port)
        for name in ("link_downed", "carrier_down_count", "link_down_events_phy", "link_down_events"):
            if name in place.counts:
                self.put(port, name, place.counts[name] + 1)

    def remove(self, port: str) -> None:
        """Take the device away, as a driver that is unloaded does."""
        shutil.rmtree(self._port(port).device)

    def restore(self, port: str) -> None:
        """Bring the device back with all counts at zero, as a driver that is loaded again does."""
        place = self._port(port)
        place.counts = dict.fromkeys(place.counts, 0)
        place.state = "ACTIVE"
        self._write_all(place)

    def write(self, path: Path, text: str) -> None:
        """Give a file a new text, in one piece for those who hold it open."""
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | (0 if self._live else os.O_TRUNC)
        descriptor = os.open(path, flags, 0o444)
        try:
            os.pwrite(descriptor, (text + "\n").ljust(WIDTH if self._live else 0, "\n").encode(), 0)
        finally:
            os.close(descriptor)

    def _port(self, port: str) -> _Port:
        if port not in self._ports:
            raise PortError(f"no port {port!r}: there are {', '.join(self._ports)}")
        return self._ports[port]

    def _text(self, place: _Port, name: str, text: str) -> None:
        self.write(place.port / name, text)

    def _make(self, index: int) -> None:
        vendor = self.vendor
        name = vendor.device.format(index)
        device = self.root / "sys/class/infiniband" / name
        place = _Port(index, device, device / "ports/1", vendor.interface.format(index), rate=vendor.rate)
        for folder, names in _folders(vendor, place):
            place.paths |= {name: folder / name for name in names if name not in place.paths}
        place.counts = {name: self._number(name) for name in (*place.paths, *vendor.statistics)}
        self._ports[f"{name}/1"] = place
        self._write_all(place)

    def _number(self, name: str) -> int:
        """A number that no other file has, as far as the bits allow."""
        self._next += 17
        return self._next % ((1 << BITS.get(name, 64)) - 1)

    def _write_all(self, place: _Port) -> None:
        for name, path in place.paths.items():
            self.write(path, str(place.counts[name]))
        texts = {
            "state": "4: ACTIVE",
            "phys_state": "5: LinkUp",
            "rate": place.rate,
            "link_layer": self.vendor.link_layer,
        }
        for name, text in texts.items():
            self._text(place, name, text)
        if self.vendor.hw_counters:
            self.write(place.port / "hw_counters/lifespan", "10")
        if place.interface:
            self._write_interface(place)

    def _write_interface(self, place: _Port) -> None:
        index = place.index % 256
        net = place.device / "device/net" / place.interface
        self.write(net / "address", f"02:50:57:00:00:{index:02x}")
        self.write(net / "dev_port", "0")
        # the first record is the address, by which a reader makes sure that it asks the right interface
        records = struct.pack(f"<{NAME_BYTES}s6B2x", b":address", 2, 0x50, 0x57, 0, 0, index)
        for name in self.vendor.statistics:
            place.statistics[name] = len(records) + NAME_BYTES
            records += struct.pack(f"<{NAME_BYTES}sQ", name.encode(), place.counts[name])
        path = self.root / "ethtool" / place.interface
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(records)


def _folders(vendor: Vendor, place: _Port) -> tuple[tuple[Path, tuple[str, ...]], ...]:
    """Which files lie where; a name that comes twice counts in the first place."""
    carrier = ("carrier_down_count",) if place.interface else ()
    return (
        (place.port / "counters", vendor.counters),
        (place.port / "hw_counters", vendor.hw_counters),
        (place.device / "hw_counters", vendor.device_counters),
        (place.device / "device/net" / place.interface, carrier),
    )


WORDS = frozenset(word for vendor in VENDORS.values() for word in vendor.words)
