"""Emulated RDMA ports: trees as drivers write them, and values that change under a reader."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from emulator.hardware.rdma_vendors import BITS, VENDORS
from emulator.hardware.sysfs_rdma import NAME_BYTES, PortError, Ports


def folder_of(root: Path, port: str) -> Path:
    """Where a port's files lie."""
    device, _, number = port.partition("/")
    return root / "sys/class/infiniband" / device / "ports" / number


@pytest.mark.parametrize("vendor", VENDORS)
def test_frozen_trees_are_written_as_by_the_kernel(tmp_path: Path, vendor: str) -> None:
    """State, rate and counters have the kernel's form to the byte, and every wide counter a number of its own."""
    ports = Ports(tmp_path, 3, vendor, live=False)
    numbers = []
    for port in ports.names:
        folder = folder_of(tmp_path, port)
        assert (folder / "state").read_text() == "4: ACTIVE\n"
        assert (folder / "rate").read_text() == f"{ports.vendor.rate}\n"
        for path in folder.glob("*counters/*"):
            text = path.read_text()
            assert text == f"{int(text)}\n"
            numbers += [int(text)] if path.name not in (*BITS, "lifespan") else []
    assert len(numbers) == len(set(numbers)) > 60


def test_values_change_in_place(tmp_path: Path) -> None:
    """Who holds a file open reads the new value, longer or shorter, in a file of the same size."""
    ports = Ports(tmp_path, 2, "mlx5_ib")
    folder = folder_of(tmp_path, "mlx5_1/1")
    state, data = (os.open(folder / name, os.O_RDONLY) for name in ("state", "counters/port_xmit_data"))
    size = os.fstat(data).st_size
    for value in (7, 123456789012, 31):
        ports.put("mlx5_1/1", "port_xmit_data", value)
        assert int(os.pread(data, 64, 0)) == value
        assert os.fstat(data).st_size == size
    ports.set("mlx5_1/1", state="DOWN", rate=1e11)
    assert os.pread(state, 64, 0).split() == [b"1:", b"DOWN"]
    assert (folder / "rate").read_text().strip() == "100 Gb/sec (4X NDR)"
    os.close(state)
    os.close(data)


def test_parts_of_a_unit_are_not_lost(tmp_path: Path) -> None:
    """Bytes that make no whole word yet are counted with the next."""
    ports = Ports(tmp_path, 1, "mlx5_ib")
    before = ports.count("mlx5_0/1", "port_rcv_data")
    for _ in range(5):
        ports.add("mlx5_0/1", receive_bytes=3)
    assert ports.count("mlx5_0/1", "port_rcv_data") == before + 15 // 4


def test_narrow_counters_stay_at_their_largest(tmp_path: Path) -> None:
    """A counter of 16 bits does not restart."""
    ports = Ports(tmp_path, 1, "mlx5_ib")
    ports.add("mlx5_0/1", symbol_errors=1e6)
    assert (folder_of(tmp_path, "mlx5_0/1") / "counters/symbol_error").read_text().strip() == "65535"


def test_statistics_are_records(tmp_path: Path) -> None:
    """The file for the stand-in has the address first, then each name with its count, changed in place."""
    ports = Ports(tmp_path, 2, "mlx5_roce")
    ports.put("mlx5_1/1", "tx_prio3_pause", 4711)
    data = (tmp_path / "ethtool" / ports.interface("mlx5_1/1")).read_bytes()
    records = {name.rstrip(b"\0").decode(): count for name, count in struct.iter_unpack(f"<{NAME_BYTES}sQ", data)}
    assert records.pop(":address").to_bytes(6, "little").hex(":") == "02:50:57:00:00:01"
    assert records["tx_prio3_pause"] == 4711
    assert records == {name: ports.count("mlx5_1/1", name) for name in ports.vendor.statistics}


def test_wrong_words_are_named(tmp_path: Path) -> None:
    """A vendor, port, word or state that is not known is refused in one line."""
    with pytest.raises(PortError, match="mlx4"):
        Ports(tmp_path, 1, "mlx4")
    ports = Ports(tmp_path, 1, "efa")
    with pytest.raises(PortError, match="efa_0/1"):
        ports.add("mlx5_0/1", transmit_bytes=1)
    with pytest.raises(PortError, match="'bytes'"):
        ports.add("efa_0/1", bytes=1)
    with pytest.raises(PortError, match="'SLEEPY'"):
        ports.set("efa_0/1", state="SLEEPY")
    ports.add("efa_0/1", cnp_sent=5)  # a word that this driver does not count
