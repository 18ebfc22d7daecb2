"""RDMA ports under /sys/class/infiniband: which there are, their network interfaces, and how files are written."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_UP = (4, 5)  # ACTIVE, ACTIVE_DEFER (enum ib_port_state)


@dataclass(frozen=True, slots=True)
class Place:
    """A port that was found: its name in the table `rdma`, and its folders."""

    name: str
    folder: Path
    device: Path
    virtual: bool
    """Whether it is of a virtual function."""


def find(root: Path) -> list[Place]:
    """The ports, those of physical functions first; a machine without any has none."""
    found: list[Place] = []
    for device in listed(root / "sys/class/infiniband"):
        virtual = (device / "device/physfn").exists()
        ports = [port for port in listed(device / "ports") if port.name.isdigit()]
        found += [Place(f"{device.name}/{port.name}"[:80], port, device, virtual) for port in ports]
    return sorted(found, key=lambda place: place.virtual)


def interfaces(place: Place) -> list[Path]:
    """The folders of the network interfaces on this Ethernet port: two where links are bonded, else one."""
    name = text_of(place.folder / "gid_attrs/ndevs/0").replace("/", "")
    master = place.device / "device/net" / name
    lower = [path for path in listed(_class_net(place.device) / name) if path.name.startswith("lower_")] if name else []
    if lower:
        return [path.resolve() for path in lower]
    found = [path for path in listed(place.device / "device/net") if not _is_representor(path)]
    mine = [path for path in found if text_of(path / "dev_port") in ("", str(int(place.folder.name) - 1))]
    return [master] if name and master in mine else mine[:1] if mine else found[:1]


def parse_state(data: bytes) -> float:
    """1 for a link that carries traffic, else 0, of `4: ACTIVE`. Raises ValueError on another form."""
    return float(int(data.partition(b":")[0]) in _UP)


def parse_rate(data: bytes) -> float:
    """Bits per second of `400 Gb/sec (4X NDR)`. Raises ValueError on another form."""
    words = data.split(maxsplit=2)
    if len(words) < 2 or words[1] != b"Gb/sec" or not 0 <= (rate := float(words[0])) < 1e6:
        raise ValueError(f"a rate is written {data[:40]!r}")
    return rate * 1e9


def parse_count(data: bytes) -> int:
    """A counter. Raises ValueError for text ("N/A (no PMA)") and for what is no number of 64 bits."""
    text = data.strip()
    if not text.isdigit() or (number := int(text)) >> 64:
        raise ValueError(f"a counter is written {data[:40]!r}")
    return number


def listed(folder: Path) -> list[Path]:
    """What a folder holds, numbers in their order; nothing where it cannot be read."""
    try:
        return [folder / name for name in sorted(os.listdir(folder), key=lambda name: (len(name), name))]
    except OSError:
        return []


def bytes_of(path: Path | str) -> bytes:
    """The first 64 bytes of a file. Raises OSError, and never waits for one that is no plain file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        return os.pread(descriptor, 64, 0)
    finally:
        os.close(descriptor)


def text_of(path: Path) -> str:
    """The first line of a file; empty where it cannot be read."""
    try:
        return bytes_of(path).decode("ascii", "replace").strip()
    except OSError:
        return ""


def _class_net(device: Path) -> Path:
    """/sys/class/net of the same tree."""
    return device.parent.parent / "net"


def _is_representor(interface: Path) -> bool:
    """Whether it stands in the switch for a virtual function (Documentation/networking/switchdev.rst)."""
    name = text_of(interface / "phys_port_name")
    return name.startswith(("pf", "c")) and ("vf" in name or "sf" in name)
