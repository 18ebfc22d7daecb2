"""An emulated machine's /sys/bus/pci and /sys/class/net: which GPU and which network adapter is at which place."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from emulator.hardware.sysfs_rdma import Ports

NVIDIA, MELLANOX = "0x10de", "0x15b3"
DISPLAY, ETHERNET = "0x030200", "0x020000"


def address_of(bus_id: str) -> str:
    """A GPU's place as /sys names it, from NVML's form with eight digits."""
    return bus_id[4:].lower()


def adapter_address(index: int) -> str:
    """Where the network adapter beside the GPU of that number sits."""
    return f"0000:{0x1C + 0x11 * index:02x}:00.0"


def plant(root: Path, gpus: Sequence[str], ports: Ports) -> None:
    """Write the tree for GPUs at these addresses, and the ports beside them."""
    for index, (address, port) in enumerate(zip(gpus, ports.names, strict=True)):
        _device(root, address, NVIDIA, DISPLAY)
        adapter = _device(root, adapter_address(index), MELLANOX, ETHERNET)
        (adapter / "infiniband" / port.split("/")[0]).mkdir(parents=True)
        interface = ports.interface(port)
        if interface:
            net = root / "sys/class/net" / interface
            net.mkdir(parents=True)
            (net / "device").symlink_to(adapter.resolve())


def _device(root: Path, address: str, vendor: str, kind: str) -> Path:
    folder = root / "sys/bus/pci/devices" / address
    folder.mkdir(parents=True)
    (folder / "vendor").write_text(f"{vendor}\n")
    (folder / "class").write_text(f"{kind}\n")
    return folder
