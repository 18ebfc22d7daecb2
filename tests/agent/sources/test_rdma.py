"""RDMA ports: what their files and statistics say, and what becomes of those that fail, fall, come and go."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.config import AgentConfig
from agent.context import Context
from agent.rdma import ethtool_counters
from agent.rdma.counter_names import COLUMNS, column_of, plan
from agent.rdma.discovery import find, interfaces, parse_count, parse_rate, parse_state
from agent.rdma.ethtool import MOST, Ethtool, is_reported, split_names
from agent.rdma.ethtool_counters import Statistics
from agent.rdma.sysfs_counters import LONGEST_NS, MOST_FILES, PATIENCE_NS
from agent.sources.rdma import MOST_PORTS, REST_NS, Rdma, open_source
from emulator.hardware.rdma_vendors import VENDORS
from emulator.hardware.sysfs_rdma import WORDS, Ports
from emulator.libraries.build import ETHTOOL, Libraries
from store.schema.catalogue import METRICS
from store.schema.sample import Batch
from store.sqlite.embedded import Embedded

SECOND = 10**9
START = 10**18


class Reader:
    """A source on a folder, read once for each second that passes."""

    def __init__(self, root: Path) -> None:
        self.source = open_source(Context(AgentConfig(root=str(root))))
        self.now = START

    def read(self, seconds: float = 1.0) -> dict[str, dict[str, Any]]:
        """The rows of the ports by name; `events` has the events."""
        self.now += int(seconds * SECOND)
        samples = self.source.read(self.now)
        for sample in samples:
            json.dumps(dict(sample.values), allow_nan=False)
        self.events = [dict(sample.values) for sample in samples if sample.table == "event"]
        return {str(s.values["port"]): dict(s.values) for s in samples if s.table == "rdma"}

    def codes(self, seconds: float = 1.0) -> list[tuple[Any, Any]]:
        """Codes and severities of the events of one reading."""
        self.read(seconds)
        return [(event["code"], event["severity"]) for event in self.events]


@pytest.fixture
def reader(tmp_path: Path) -> Any:
    """Reads the ports below tmp_path."""
    found = Reader(tmp_path)
    yield found
    found.source.close()


def put(path: Path, text: str) -> None:
    """Write a file and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def port_at(root: Path, device: str, port: str = "1", **files: str) -> Path:
    """A port by hand, with these files beside state and rate."""
    folder = root / "sys/class/infiniband" / device / "ports" / port
    files = {"state": "4: ACTIVE\n", "rate": "200 Gb/sec (4X HDR)\n", "link_layer": "InfiniBand\n"} | files
    for name, text in files.items():
        put(folder / name.replace("__", "/"), text)
    return folder


def descriptors(below: Path) -> int:
    """How many files below a folder this process holds open."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            count += os.readlink(f"/proc/self/fd/{name}").startswith(str(below))
    return count


@pytest.mark.parametrize("vendor", VENDORS)
def test_each_driver_fills_the_columns(tmp_path: Path, reader: Reader, vendor: str) -> None:
    """Whatever the files are called, what a port does arrives in its column with the column's unit."""
    ports = Ports(tmp_path, 3, vendor)
    port, others = ports.names[1], {ports.names[0], ports.names[2]}
    words = [word for word, (name, _) in ports.vendor.words.items() if name not in ports.vendor.statistics]
    assert len(words) >= 6
    before = reader.read()
    done = {word: 4 * place for place, word in enumerate(words, 3)}
    ports.add(port, **done)
    after = reader.read()
    for word, increment in done.items():
        assert after[port][f"{word}_total"] == before[port][f"{word}_total"] + increment, word
        assert all(after[other][f"{word}_total"] == before[other][f"{word}_total"] for other in others)
    expected = (1.0, parse_rate(ports.vendor.rate.encode()))
    assert (after[port]["link_up"], after[port]["rate_bits_per_second"]) == expected


def test_every_counter_is_passed_on_under_its_own_name(tmp_path: Path, reader: Reader) -> None:
    """What has no column of its own in the catalogue is a column by the driver's name, the device's counters too."""
    ports = Ports(tmp_path, 1, "efa", live=False)
    (row,) = reader.read().values()
    for name in ("rdma_read_wr_err", "retrans_pkts", "keep_alive_rcvd", "mmap_err"):
        assert row[name] == ports.count("efa_0/1", name)
    assert "lifespan" not in row


def test_words_of_data_are_four_bytes(tmp_path: Path, reader: Reader) -> None:
    """port_xmit_data counts words of four bytes (InfiniBand specification)."""
    ports = Ports(tmp_path, 1, "mlx5_ib")
    before = reader.read()["mlx5_0/1"]
    ports.add("mlx5_0/1", transmit_bytes=4 * 911, receive_packets=13, transmit_wait_ticks=59)
    after = reader.read()["mlx5_0/1"]
    grown = {name: after[name] - before[name] for name in after if name in COLUMNS}
    assert {name: by for name, by in grown.items() if by} == {
        "transmit_bytes_total": 3644,
        "receive_packets_total": 13,
        "transmit_wait_ticks_total": 59,
    }


def test_the_rest_is_read_every_ten_seconds(tmp_path: Path, reader: Reader) -> None:
    """What peers are compared by is in each row, drivers' own names in one of ten."""
    Ports(tmp_path, 2, "mlx5_ib")
    rows = [reader.read()["mlx5_1/1"] for _ in range(40)]
    assert [sum("rnr_nak_retry_err" in row for row in rows[at : at + 10]) for at in (1, 11, 21)] == [1, 1, 1]
    assert all({"transmit_bytes_total", "ack_timeouts_total", "link_up"} <= row.keys() for row in rows)


def test_text_for_a_number_no_pma(tmp_path: Path, reader: Reader) -> None:
    """'N/A (no PMA)' takes its own column along and no other; it comes back when the driver has a number again."""
    folder = port_at(
        tmp_path,
        "mlx4_0",
        counters__port_xmit_data="7\n",
        counters__symbol_error="N/A (no PMA)\n",
        hw_counters__dup="5\n",
    )
    row = reader.read()["mlx4_0/1"]
    assert (row["transmit_bytes_total"], row["dup"]) == (28, 5)
    assert not {"symbol_errors_total", "symbol_error"} & row.keys()
    put(folder / "counters/symbol_error", "3\n")
    later = [reader.read()["mlx4_0/1"].get("symbol_errors_total") for _ in range(31)]
    assert later[0] is None
    assert later[-1] == 3


def test_einval_on_restricted_functions(tmp_path: Path, reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that the kernel refuses harms no other, and is asked ever more rarely: no flood of the kernel log."""
    folder = port_at(tmp_path, "mlx5_9", counters__port_rcv_data="11\n", counters__link_downed="2\n")
    reader.read()
    (folder / "counters/link_downed").unlink()
    (folder / "counters/link_downed").symlink_to("/sys/class/net/lo/speed")  # EINVAL, for loopback has no speed
    with pytest.raises(OSError, match="Invalid argument"):
        (folder / "counters/link_downed").read_bytes()
    reader.source.close()
    reader.source = Rdma(tmp_path)
    asked = 0

    def counting(path: Any, *rest: Any, real: Any = os.open) -> int:
        nonlocal asked
        asked += str(path).endswith("link_downed")
        return int(real(path, *rest))

    monkeypatch.setattr(os, "open", counting)
    rows = [reader.read()["mlx5_9/1"] for _ in range(600)]
    assert all(row["receive_bytes_total"] == 44 and "link_downed_total" not in row for row in rows)
    assert 2 <= asked <= 8


def test_a_judged_file_that_fails_later(tmp_path: Path, reader: Reader) -> None:
    """A file held open that turns to text leaves its column out until it is asked again, and then counts on."""
    ports = Ports(tmp_path, 1, "mlx5_ib")
    assert "cnp_sent_total" not in reader.read()["mlx5_0/1"]
    path = tmp_path / "sys/class/infiniband/mlx5_0/ports/1/hw_counters/out_of_sequence"
    ports.write(path, "N/A (no PMA)")
    assert "out_of_sequence_total" not in reader.read()["mlx5_0/1"]
    ports.put("mlx5_0/1", "out_of_sequence", 7001)
    assert "out_of_sequence_total" not in reader.read(PATIENCE_NS / SECOND - 2)["mlx5_0/1"]
    assert reader.read(3)["mlx5_0/1"]["out_of_sequence_total"] == 7001


def test_missing_class_directory(tmp_path: Path, reader: Reader) -> None:
    """Without any RDMA device there are no rows and no error; a driver that is loaded later is found."""
    assert reader.read() == {}
    Ports(tmp_path, 2, "bnxt_re")
    assert set(reader.read()) == {"bnxt_re0/1", "bnxt_re1/1"}
    assert reader.events == []


def test_irdma_and_omnipath_differ(tmp_path: Path, reader: Reader) -> None:
    """Names with blanks and capitals become columns that the store takes; IPv4 and IPv6 add up."""
    ports = Ports(tmp_path, 1, "irdma")
    port_at(
        tmp_path, "hfi1_0", counters__port_xmit_data="91\n", hw_counters__RxFCtrlWrd="23\n", hw_counters__8051Crc="3\n"
    )
    reader.read()
    rows = reader.read(1.5 * REST_NS / SECOND)
    count = {name: ports.count("irdma0/1", name) for name in ("ip4OutOctets", "ip6OutOctets", "RNR sent")}
    assert rows["irdma0/1"]["transmit_bytes_total"] == count["ip4OutOctets"] + count["ip6OutOctets"]
    assert rows["irdma0/1"]["rnr_sent"] == count["RNR sent"]
    assert (rows["hfi1_0/1"]["rxfctrlwrd"], rows["hfi1_0/1"]["n_8051crc"]) == (23, 3)
    store = Embedded(tmp_path / "peerwatch.db")
    store.write([Batch("m7", START, tuple(reader.source.read(reader.now + 40 * SECOND)))])
    rows = store.read("rdma").to_pylist()
    store.close()
    assert {row["port"] for row in rows} == {"irdma0/1", "hfi1_0/1"}
    assert {row["rnr_sent"] for row in rows} == {count["RNR sent"], None}


@pytest.mark.parametrize(("name", "bits"), [("symbol_error", 16), ("link_downed", 8), ("port_xmit_data", 32)])
def test_narrow_counters_that_are_full(tmp_path: Path, reader: Reader, name: str, bits: int) -> None:
    """A counter at its largest value says nothing: its column is unknown, for its rate is not zero."""
    column = {"symbol_error": "symbol_errors_total", "link_downed": "link_downed_total"}.get(
        name, "transmit_bytes_total"
    )
    folder = port_at(tmp_path, "mthca0", **{f"counters__{name}": f"{(1 << bits) - 2}\n"})
    assert reader.read()["mthca0/1"][column] == ((1 << bits) - 2) * (4 if bits == 32 else 1)
    put(folder / f"counters/{name}", f"{(1 << bits) - 1}\n")
    assert column not in reader.read()["mthca0/1"]
    put(folder / f"counters/{name}", "41\n")
    assert reader.read()["mthca0/1"][column] == 41 * (4 if bits == 32 else 1)


def test_counters_that_wrap_or_are_reset(tmp_path: Path, reader: Reader) -> None:
    """A decrease is handed on as it is and makes no event: whoever compares takes it for a reset."""
    ports = Ports(tmp_path, 1, "mlx5_ib")
    before = reader.read()["mlx5_0/1"]["link_downed_total"]
    ports.put("mlx5_0/1", "link_downed", 1)
    assert before > 1
    assert reader.read()["mlx5_0/1"]["link_downed_total"] == 1
    assert reader.events == []


def test_a_link_that_goes_down_and_comes_up(tmp_path: Path, reader: Reader) -> None:
    """Both are events with the device; the port's own count of the same fall is no second one."""
    ports = Ports(tmp_path, 2, "mlx5_ib")
    reader.read()
    ports.set("mlx5_1/1", state="DOWN")
    assert reader.codes() == [("link_down", "crit")]
    assert reader.events[0]["device"] == "rdma:mlx5_1/1"
    assert reader.read()["mlx5_1/1"]["link_up"] == 0.0
    ports.set("mlx5_1/1", state="INIT")
    assert reader.codes() == []
    ports.set("mlx5_1/1", state="ACTIVE")
    assert reader.codes() == [("link_up", "info")]
    assert reader.codes() == []


def test_link_flap_between_two_readings(tmp_path: Path, reader: Reader) -> None:
    """A link that fell and came back unseen is known by its counter, which also gives how often."""
    ports = Ports(tmp_path, 1, "mlx5_roce")
    reader.read()
    ports.flap("mlx5_0/1")
    assert reader.codes() == [("link_flap", "warn")]
    ports.flap("mlx5_0/1")
    ports.flap("mlx5_0/1")
    assert reader.codes(290) == [("link_flap", "warn")]
    assert "came back 2 times between two readings" in reader.events[0]["message"]
    assert reader.codes(301) == []


def test_a_link_that_keeps_falling(tmp_path: Path, reader: Reader) -> None:
    """Each fall that is seen is reported once; that they are many is for the detector to say."""
    ports = Ports(tmp_path, 1, "mlx5_ib")
    reader.read()
    codes = []
    for state in ("DOWN", "ACTIVE", "DOWN", "ACTIVE"):
        ports.set("mlx5_0/1", state=state)
        codes.append(reader.codes(20))
    assert codes[0] == [("link_down", "crit")]
    assert codes[2] == [("link_down", "crit")]
    assert codes[1] == codes[3] == [("link_up", "info")]


def test_a_port_without_subnet_manager(tmp_path: Path, reader: Reader) -> None:
    """A port that falls back to INIT with its link up is a warning: all machines of a fabric do so together."""
    ports = Ports(tmp_path, 1, "mlx5_ib")
    reader.read()
    ports.set("mlx5_0/1", state="INIT")
    assert reader.codes() == [("link_down", "warn")]
    assert "subnet manager" in reader.events[0]["message"]
    assert reader.read()["mlx5_0/1"]["link_up"] == 0.0
    ports.set("mlx5_0/1", state="ACTIVE")
    assert reader.codes() == [("link_up", "info")]
    assert reader.codes(400) == []
    ports.flap("mlx5_0/1")  # which the fall that no counter counted does not hide
    assert reader.codes() == [("link_flap", "warn")]


def test_a_port_that_was_never_up(tmp_path: Path, reader: Reader) -> None:
    """A port without a cable is a reading, but no event."""
    Ports(tmp_path, 1, "mlx5_ib").set("mlx5_0/1", state="DOWN")
    assert reader.read()["mlx5_0/1"]["link_up"] == 0.0
    assert reader.events == []


def test_a_driver_that_is_reloaded(tmp_path: Path, reader: Reader) -> None:
    """A port that is taken away is a lost link and leaves nothing open; it comes back with fresh counts."""
    ports = Ports(tmp_path, 2, "mlx5_ib")
    reader.read()
    held = descriptors(tmp_path)
    ports.remove("mlx5_0/1")
    assert set(reader.read()) == {"mlx5_1/1"}
    assert [(event["code"], event["device"]) for event in reader.events] == [("link_down", "rdma:mlx5_0/1")]
    assert descriptors(tmp_path) == held // 2
    assert reader.codes() == []
    ports.restore("mlx5_0/1")
    assert reader.read()["mlx5_0/1"]["transmit_bytes_total"] == 0
    assert [event["code"] for event in reader.events] == ["link_up"]
    assert descriptors(tmp_path) == held
    reader.source.close()
    assert descriptors(tmp_path) == 0


def test_a_driver_that_is_reloaded_between_two_readings(tmp_path: Path, reader: Reader) -> None:
    """Files of the port as it was are let go at the latest when the rest is read."""
    ports = Ports(tmp_path, 1, "mlx5_ib")
    reader.read()
    ports.remove("mlx5_0/1")
    ports.restore("mlx5_0/1")
    ports.add("mlx5_0/1", receive_bytes=4 * 83)
    for _ in range(2 + REST_NS // SECOND):
        row = reader.read().get("mlx5_0/1", {})
    assert row["receive_bytes_total"] == 332


def test_a_port_that_a_container_takes(tmp_path: Path, reader: Reader) -> None:
    """A device that still has its driver was handed to another namespace: no fault of the machine."""
    folder = port_at(tmp_path, "mlx5_3", counters__port_xmit_data="7\n")
    (tmp_path / "sys/devices/0000:5e:00.1/driver").mkdir(parents=True)
    (folder.parent.parent / "device").symlink_to("../../../devices/0000:5e:00.1")
    reader.read()
    shutil.rmtree(folder.parent.parent)
    assert reader.codes() == [("port_gone", "info")]


def test_devices_with_two_ports(tmp_path: Path, reader: Reader) -> None:
    """Each port is a row of its own, with its own network interface; what the device counts stands with the first."""
    for port, words in (("1", 17), ("2", 19)):
        port_at(tmp_path, "mlx5_0", port, link_layer="Ethernet\n", counters__port_xmit_data=f"{words}\n")
    device = tmp_path / "sys/class/infiniband/mlx5_0"
    put(device / "hw_counters/roce_slow_restart", "23\n")
    for name, number, downs in (("ens3f0", 0, 29), ("ens3f1", 1, 31)):
        put(device / f"device/net/{name}/dev_port", f"{number}\n")
        put(device / f"device/net/{name}/carrier_down_count", f"{downs}\n")
    rows = reader.read()
    assert {name: row["transmit_bytes_total"] for name, row in rows.items()} == {"mlx5_0/1": 68, "mlx5_0/2": 76}
    assert {name: row["link_downed_total"] for name, row in rows.items()} == {"mlx5_0/1": 29, "mlx5_0/2": 31}
    assert [row.get("roce_slow_restart") for row in rows.values()] == [23, None]


def test_bonded_ports(tmp_path: Path, reader: Reader) -> None:
    """mlx5_bond_0 stands for two links: what their interfaces count adds up."""
    port_at(tmp_path, "mlx5_bond_0", link_layer="Ethernet\n", gid_attrs__ndevs__0="bond0\n")
    for name, downs in (("ens3f0np0", 37), ("ens3f1np1", 41)):
        put(tmp_path / f"sys/devices/{name}/carrier_down_count", f"{downs}\n")
        lower = tmp_path / f"sys/class/net/bond0/lower_{name}"
        lower.parent.mkdir(parents=True, exist_ok=True)
        lower.symlink_to(f"../../../devices/{name}")
    put(tmp_path / "sys/class/infiniband/mlx5_bond_0/device/net/ens3f0np0/carrier_down_count", "37\n")
    (place,) = find(tmp_path)
    assert [path.name for path in interfaces(place)] == ["ens3f0np0", "ens3f1np1"]
    assert reader.read()["mlx5_bond_0/1"]["link_downed_total"] == 78


def test_representors_are_passed_over(tmp_path: Path) -> None:
    """In switch mode the uplink's interface is the port's, not that of a virtual function's representor."""
    port_at(tmp_path, "rocep1", link_layer="Ethernet\n")
    net = tmp_path / "sys/class/infiniband/rocep1/device/net"
    for name, switch in (("enp1f0npf0vf0", "pf0vf0"), ("enp1f0np0", "p0")):
        put(net / name / "phys_port_name", f"{switch}\n")
        put(net / name / "dev_port", "0\n")
    (place,) = find(tmp_path)
    assert [path.name for path in interfaces(place)] == ["enp1f0np0"]


def test_virtual_functions_come_last_and_are_bounded(
    tmp_path: Path, reader: Reader, caplog: pytest.LogCaptureFixture
) -> None:
    """However many virtual functions there are, the physical ports are read, and no more than a fixed number of all."""
    for index in range(MOST_PORTS + 9):
        folder = port_at(tmp_path, f"mlx5_{index}")
        if index % 5:
            (folder.parent.parent / "device/physfn").mkdir(parents=True)
    assert [place.virtual for place in find(tmp_path)] == [False] * 9 + [True] * MOST_PORTS
    rows = reader.read()
    assert len(rows) == MOST_PORTS
    assert {f"mlx5_{index}/1" for index in range(0, MOST_PORTS + 9, 5)} <= rows.keys()
    reader.read(20)
    assert [record.getMessage() for record in caplog.records] == ["of 41 RDMA ports the first 32 are read"]


def test_a_clock_that_is_set_back(tmp_path: Path, reader: Reader) -> None:
    """The rest, what failed, and new ports are looked at within seconds, though the clock says they are not due."""
    folder = port_at(tmp_path, "mlx5_0", counters__symbol_error="N/A (no PMA)\n", hw_counters__out_of_buffer="67\n")
    for _ in range(300):
        reader.read()
    reader.now -= 86400 * SECOND
    put(folder / "counters/symbol_error", "5\n")
    port_at(tmp_path, "mlx5_0", "2")
    rows = [reader.read() for _ in range(12)]
    assert rows[0]["mlx5_0/1"]["out_of_buffer"] == 67
    assert rows[-1]["mlx5_0/1"]["symbol_errors_total"] == 5
    assert "mlx5_0/2" in rows[0]
    assert sum("out_of_buffer" in row["mlx5_0/1"] for row in rows) == 2


def test_a_folder_with_thousands_of_files(tmp_path: Path, reader: Reader) -> None:
    """The number of columns is bounded, and what peers are compared by is among them."""
    folder = port_at(tmp_path, "mlx5_0", hw_counters__out_of_sequence="53\n")
    for index in range(3 * MOST_FILES):
        put(folder / f"hw_counters/a{index}", f"{index}\n")
    row = reader.read()["mlx5_0/1"]
    assert len(row) < MOST_FILES + 5
    assert row["out_of_sequence_total"] == 53


def test_a_pipe_among_the_files(tmp_path: Path, reader: Reader) -> None:
    """A file that would make its reader wait for ever does not."""
    folder = port_at(tmp_path, "mlx5_0", hw_counters__out_of_buffer="61\n")
    os.mkfifo(folder / "hw_counters/packet_seq_err")
    assert reader.read()["mlx5_0/1"]["out_of_buffer"] == 61


def test_files_of_the_real_sysfs(tmp_path: Path, reader: Reader) -> None:
    """A file of sysfs that is held open tells the new value at each reading."""
    folder = port_at(tmp_path, "rxe0", hw_counters__rx_pkts="0\n")
    (folder / "hw_counters/tx_pkts").symlink_to("/sys/class/net/lo/statistics/tx_packets")
    before = reader.read()["rxe0/1"]["transmit_packets_total"]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for _ in range(67):
            sender.sendto(b"seen", ("127.0.0.1", 9))
    assert reader.read()["rxe0/1"]["transmit_packets_total"] >= before + 67


@given(st.integers(0, 2**64 - 1))
def test_counts_are_read_back(number: int) -> None:
    """Every number of 64 bits is read as it was written, with or without blanks behind."""
    assert parse_count(b"%d\n" % number) == parse_count(b"%d\n\n\n" % number) == number


@given(st.binary(max_size=64) | st.from_regex(rb"[-+_0-9. eExX]{1,40}", fullmatch=True))
def test_other_text_is_a_value_error(data: bytes) -> None:
    """A parser gives a value that can be meant or raises ValueError, whatever it is given."""
    with contextlib.suppress(ValueError):
        assert 0 <= parse_count(data) < 1 << 64
    with contextlib.suppress(ValueError):
        assert parse_state(data) in (0.0, 1.0)
    with contextlib.suppress(ValueError):
        assert 0 <= parse_rate(data) < 1e15


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        (b"400 Gb/sec (4X NDR)\n", 4e11),
        (b"2.5 Gb/sec (1X SDR)\n", 2.5e9),
        (b"12.5 Gb/sec (2X FDR10)\n", 1.25e10),
        (b"800 Gb/sec (8X NDR)\n\n\n", 8e11),
    ],
)
def test_rates(text: bytes, rate: float) -> None:
    """The rate is in bits per second, whatever its width and speed are called."""
    assert parse_rate(text) == rate


@given(st.text(max_size=200))
def test_any_name_becomes_a_column_or_none(name: str) -> None:
    """A column's name is one that the store takes and that no key or column of the catalogue has."""
    column = column_of(name)
    if column is not None:
        assert re.fullmatch(r"[a-z][a-z0-9_]{0,99}", column)
        assert column not in {"time", "machine", "port"}
        assert f"rdma.{column}" not in METRICS


def test_columns_are_those_of_the_catalogue() -> None:
    """Every column of the table has counters of some driver behind it, and every word of the emulator is a column."""
    columns = {metric.name for metric in METRICS.values() if metric.table == "rdma"}
    assert {*COLUMNS, "link_up", "rate_bits_per_second"} == columns
    assert {f"{word}_total" for word in WORDS} == set(COLUMNS)


def test_the_best_counter_is_chosen() -> None:
    """Of several counters of one thing the best is taken; those of the eight priorities add up."""
    chosen = plan({"symbol_error", "rx_pcs_symbol_err_phy", "rx_prio1_pause", "rx_prio6_pause", "rx_global_pause"})
    names = {column: [term.name for term in terms] for column, terms in chosen.items()}
    assert names == {
        "symbol_errors_total": ["rx_pcs_symbol_err_phy"],
        "pfc_receive_frames_total": ["rx_prio1_pause", "rx_prio6_pause"],
    }


@given(
    st.lists(st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=31), max_size=40),
    st.binary(max_size=31),
)
def test_string_sets_are_split(names: list[str], rest: bytes) -> None:
    """Names of 32 bytes come back in their order; what is left over is no name."""
    data = b"".join(name.encode().ljust(32, b"\0") for name in names)
    assert split_names(data + rest) == names


@given(st.binary(max_size=400))
def test_string_sets_of_any_bytes(data: bytes) -> None:
    """Whatever a driver has written, there are as many names as it has room for, in ASCII or replaced."""
    assert len(split_names(data)) == len(data) // 32


def test_statistics_of_queues_are_passed_over() -> None:
    """Pauses, losses and marks of the port are reported; thousands of counts of single queues are not."""
    reported = (
        "rx_prio3_pause",
        "tx_priority_4_xoff.nic",
        "mac_rx_pfc_pri0_pkt_num",
        "rx_discards_phy",
        "link_down_events",
    )
    passed = (
        "rx0_packets",
        "tx12_dropped",
        "rx_queue_0_drops",
        "[3]: rx_discards",
        "ch4_poll",
        "rx_bytes",
        "tx_packets",
    )
    assert [is_reported(name) for name in (*reported, *passed)] == [True] * 5 + [False] * 7


def test_real_interfaces() -> None:
    """Every interface of this machine gives as many values as names; one that is not there is an OSError."""
    asked = Ethtool()
    for _, name in socket.if_nameindex():
        with contextlib.suppress(OSError):  # a driver may have no statistics at all
            names = asked.names(name)
            assert len(names) <= MOST
            if names:
                assert len(asked.values(name, len(names))) == len(names)
                with pytest.raises(OSError, match="statistics"):
                    asked.values(name, len(names) + 1)
    assert asked.address("lo") == bytes(14)
    with pytest.raises(OSError, match="No such device"):
        asked.names("nothing0")
    asked.close()


def test_a_real_interface_with_known_statistics() -> None:
    """A veth pair's statistic peer_ifindex is the number of the other end."""
    script = (
        "import socket, sys; sys.path[:0] = [sys.argv[1]]; from agent.rdma.ethtool import Ethtool; asked = Ethtool(); "
        "names = asked.names('pw0'); print(asked.values('pw0', len(names))[names.index('peer_ifindex')], "
        "socket.if_nametoindex('pw1'), asked.address('pw0')[:6].hex(':'), open('/proc/net/dev').read().count('pw'))"
    )
    shell = 'ip link add pw0 address 02:50:57:01:02:03 type veth peer name pw1 && exec "$0" -c "$1" "$2"'
    if not (shutil.which("unshare") and shutil.which("ip")):
        pytest.skip("needs the programs unshare and ip to make an interface")
    root = str(Path(__file__).parents[3])
    command = ["unshare", "--net", "sh", "-c", shell, sys.executable, script, root]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "Operation not permitted" in done.stderr or "Unknown device type" in done.stderr:
        pytest.skip("this process may not make interfaces")
    peer, other, address, ends = done.stdout.split()
    assert (peer, address, ends) == (other, "02:50:57:01:02:03", "2"), done.stderr


def read_elsewhere(root: Path, libraries: Libraries, environment: dict[str, str]) -> dict[str, Any]:
    """The second row of the first port, as a process reads it for which the network interfaces are emulated."""
    script = (
        "import json, sys; from pathlib import Path; sys.path[:0] = [sys.argv[1]]\n"
        "from agent.sources.rdma import Rdma\n"
        # statistics that were dear to read are left out of some readings
        "source, row = Rdma(Path(sys.argv[2])), {}\n"
        "for n in range(1, 7): row.update(source.read(n * 10**18)[0].values)\n"
        "print(json.dumps(row))"
    )
    command = [sys.executable, "-c", script, str(Path(__file__).parents[3]), str(root)]
    loads = {**os.environ, "LD_LIBRARY_PATH": str(libraries.folder), **environment}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=loads)
    assert done.stderr == ""
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("vendor", ["mlx5_roce", "bnxt_re", "irdma"])
def test_statistics_of_the_interface(tmp_path: Path, emulated: Libraries, vendor: str) -> None:
    """Pauses come from the interface, added up over the priorities, and each is reported by its own name too."""
    assert (emulated.folder / ETHTOOL).exists()
    ports = Ports(tmp_path, 2, vendor)
    port = ports.names[0]
    ports.add(port, pfc_receive_frames=71, pfc_transmit_frames=73)
    row = read_elsewhere(tmp_path, emulated, ports.environment)
    for column in ("pfc_receive_frames_total", "pfc_transmit_frames_total"):
        names = [term.name for term in plan(ports.vendor.statistics)[column]]
        assert len(names) == 2
        assert row[column] == sum(ports.count(port, name) for name in names)
        assert [row[column_of(name) or ""] for name in names] == [ports.count(port, name) for name in names]
    if vendor == "mlx5_roce":
        assert {metric.name for metric in METRICS.values() if metric.table == "rdma"} <= row.keys()
        assert row["discards_total"] == ports.count(port, "rx_discards_phy") + ports.count(port, "tx_discards_phy")


def test_an_interface_of_another_network_namespace(tmp_path: Path, emulated: Libraries) -> None:
    """An agent in a container does not ask its own interface for that of the same name outside."""
    ports = Ports(tmp_path, 1, "mlx5_roce")
    net = tmp_path / "sys/class/infiniband/mlx5_0/device/net/emu0np0"
    ports.write(net / "address", "02:50:57:ff:ff:ff")
    assert "pfc_receive_frames_total" not in read_elsewhere(tmp_path, emulated, ports.environment)


def test_dear_statistics_are_read_rarely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a reading costs much CPU time, the next ones are made every few seconds only."""
    put(tmp_path / "ens7/address", "02:50:57:00:00:07\n")

    class Driver(Ethtool):
        def address(self, interface: str) -> bytes:
            return bytes.fromhex("025057000007").ljust(14, b"\0")

        def names(self, interface: str) -> list[str]:
            return ["rx_bytes", "rx_prio3_pause"]

        def values(self, interface: str, count: int) -> memoryview:
            return memoryview(bytearray(8) + (79).to_bytes(8, "little")).cast("Q")

    spent = iter([0, ethtool_counters.DEAR_NS + 1, 10**9, 10**9])
    monkeypatch.setattr(ethtool_counters.time, "thread_time_ns", lambda: next(spent))
    driver = Driver()
    statistics = Statistics(driver, [tmp_path / "ens7"])
    assert (statistics.names, statistics.every) == ({"rx_prio3_pause"}, 1)
    assert statistics.read() == {"rx_prio3_pause": 79}
    assert statistics.every == ethtool_counters.RARELY
    statistics.read()
    assert statistics.every == 1
    driver.close()


def test_patience_has_bounds() -> None:
    """A file that always fails is asked at least once an hour."""
    assert PATIENCE_NS < LONGEST_NS <= 3600 * SECOND
