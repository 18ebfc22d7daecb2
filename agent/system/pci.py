"""Maps PCI addresses and network interfaces in messages of the kernel to devices, by /sys."""

from __future__ import annotations

import os
import re
from pathlib import Path

_NVIDIA, _DISPLAY = "0x10de", ("0x0300", "0x0302")
_AGAIN_NS = 10_000_000_000
_ADDRESS = re.compile(r"([0-9a-f]{1,8}):([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-7]))?", re.IGNORECASE)


def normal(address: str) -> str:
    """A PCI address as /sys writes it, `0000:3b:00.0`; empty for what is none."""
    found = _ADDRESS.fullmatch(address)
    if not found:
        return ""
    return f"{int(found[1], 16):04x}:{found[2].lower()}:{found[3].lower()}.{found[4] or 0}"


class Bus:
    """Devices by their place on the bus.

    The driver numbers GPUs by their PCI address, so the order of addresses is NVML's order. A GPU that has fallen
    off the bus keeps the number that it had.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._pci, self._net = root / "sys/bus/pci/devices", root / "sys/class/net"
        self._gpus: dict[str, int] = {}
        self._listed: int | None = None

    def device(self, address: str, now: int) -> str:
        """`gpu:3`, `rdma:mlx5_0/1` or `pci:0000:3b:00.0`; empty for what is no address."""
        place = normal(address)
        if not place:
            return ""
        if place not in self._gpus and (self._listed is None or not 0 <= now - self._listed < _AGAIN_NS):
            self._listed = now
            self._list()
        if place in self._gpus:
            return f"gpu:{self._gpus[place]}"
        return self._port(self._pci / place) or f"pci:{place}"

    def interface(self, name: str) -> str:
        """The RDMA port behind a network interface, `rdma:mlx5_0/1`, or the interface itself, `net:eth0`."""
        safe = name if re.fullmatch(r"[\w.-]{1,15}", name) and name not in (".", "..") else ""
        if not safe:
            return "net:?"
        return self._port(self._net / safe / "device") or f"net:{safe}"

    def _port(self, folder: Path) -> str:
        names = _names(folder / "infiniband")
        return f"rdma:{names[0]}/1" if len(names) == 1 else ""

    def _list(self) -> None:
        """Number the GPUs, unless some are missing from those that were there."""
        there = [place for place in _names(self._pci) if self._is_gpu(place)]
        if len(there) >= len(self._gpus):
            order = sorted(there, key=lambda place: (int(place.split(":")[0], 16), place))
            self._gpus = {place: index for index, place in enumerate(order)}

    def _is_gpu(self, place: str) -> bool:
        try:
            vendor = (self._pci / place / "vendor").read_text()[:16].strip()
            return vendor == _NVIDIA and (self._pci / place / "class").read_text()[:6] in _DISPLAY
        except OSError:
            return False


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []
