"""The operating system's readings."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.sources.host import Host, Reading, parse_pressure, parse_retransmits, ratios
from store.schema.catalogue import METRICS

PRESSURE = "some avg10=1.50 avg60=2.25 avg300=3.75 total=8123456\nfull avg10=0.10 avg60=0.20 avg300=0.30 total=91\n"
SNMP = (
    "Ip: Forwarding DefaultTTL\nIp: 1 64\n"
    "Tcp: RtoAlgorithm RtoMin InSegs OutSegs RetransSegs InErrs\nTcp: 1 200 3011 2907 58 4\n"
)


def reading(seconds: int, **changes: float) -> Reading:
    """Totals after some seconds, with changes to what an idle machine would have."""
    cpu = {
        "user": 100.0,
        "nice": 0.0,
        "system": 50.0,
        "idle": 900.0,
        "iowait": 20.0,
        "irq": 3.0,
        "softirq": 7.0,
        "guest": 11.0,
    }
    cpu |= {name: value for name, value in changes.items() if name in cpu}
    pressure = {"cpu": int(changes.get("cpu_us", 5000)), "io": int(changes.get("io_us", 700))}
    return Reading(seconds * 10**9, cpu, pressure, {"nvme0n1": int(changes.get("busy", 40)), "sda": 13})


def test_pressure_is_the_total_of_some() -> None:
    """The line `some` counts; a file of another form is a ValueError."""
    assert parse_pressure(PRESSURE) == 8123456
    with pytest.raises(ValueError, match="some"):
        parse_pressure("full avg10=0 total=5")


def test_retransmits_by_the_column_name() -> None:
    """The column is found by its name, wherever it stands."""
    assert parse_retransmits(SNMP) == 58
    with pytest.raises(ValueError, match="RetransSegs"):
        parse_retransmits("Udp: InDatagrams\nUdp: 4\n")


@given(st.text(max_size=200))
def test_parsers_fail_cleanly(text: str) -> None:
    """Any other text is a ValueError and nothing else."""
    for parse in (parse_pressure, parse_retransmits):
        with contextlib.suppress(ValueError):
            assert isinstance(parse(text), int)


def test_ratios_between_two_readings() -> None:
    """Shares are of the time between the readings, guest time is not counted twice, the busiest disk counts."""
    before = reading(0)
    after = reading(
        2, user=101.0, system=50.5, idle=901.9, iowait=20.4, softirq=7.2, guest=11.9, cpu_us=505000, busy=1240
    )
    found = ratios(before, after)
    assert found["cpu_utilization_ratio"] == pytest.approx(1.7 / 4.0)
    assert found["cpu_system_ratio"] == pytest.approx(0.7 / 4.0)
    assert found["cpu_iowait_ratio"] == pytest.approx(0.1)
    assert found["cpu_pressure_ratio"] == pytest.approx(0.25)
    assert found["io_pressure_ratio"] == 0.0
    assert found["disk_utilization_ratio"] == pytest.approx(0.6)


def test_a_clock_that_stands_or_goes_back() -> None:
    """Without time between the readings there is no share."""
    assert ratios(reading(5), reading(5)) == {}
    assert ratios(reading(5), reading(4)) == {}


def test_counters_that_go_back_stay_in_bounds() -> None:
    """A disk or pressure total that was reset gives a share within 0 to 1."""
    found = ratios(reading(0, busy=9000, cpu_us=10**9), reading(1, busy=3, idle=901.0))
    assert all(0 <= value <= 1 for value in found.values() if isinstance(value, float))


def test_this_machine() -> None:
    """On the machine at hand every column is in the catalogue, and the second reading has ratios."""
    host = Host(Path("/proc"))
    (first,), (second,) = host.read(10**18), host.read(10**18 + 10**9)
    assert "cpu_utilization_ratio" not in first.values
    for name, value in second.values.items():
        assert f"host.{name}" in METRICS
        assert value is not None
        if name.endswith("_ratio"):
            assert 0 <= float(value) <= 1
    host.close()


def test_kernel_without_pressure(tmp_path: Path) -> None:
    """A kernel without PSI gives the rest."""
    (tmp_path / "net").mkdir()
    (tmp_path / "net/snmp").write_text(SNMP)
    (tmp_path / "loadavg").write_text("0.31 0.52 0.73 4/815 99\n")
    host = Host(tmp_path)
    host.read(1)
    (sample,) = host.read(10**9)
    assert sample.values["processes_running"] == 4.0
    assert sample.values["tcp_retransmit_segments_total"] == 58
    assert "cpu_pressure_ratio" not in sample.values


def test_a_partition_is_not_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes of a disk's partitions are in the disk's own; another disk's are added."""
    sizes = {"nvme0n1": 700, "nvme0n1p1": 300, "nvme0n1p2": 211, "sda": 41, "sda1": 37, "dm-0": 5}
    disks = {name: SimpleNamespace(read_bytes=size, write_bytes=2 * size, busy_time=1) for name, size in sizes.items()}
    monkeypatch.setattr(psutil, "disk_io_counters", lambda perdisk, nowrap: disks)
    source = Host(Path("/proc"))
    (row,) = source.read(1)
    source.close()
    assert (row.values["disk_read_bytes_total"], row.values["disk_write_bytes_total"]) == (746, 1492)


def test_totals_do_not_move_with_devices_that_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a container takes no bytes away, and an interface that is handed back brings none along."""
    links = {"lo": (5, 5), "eth0": (1000, 300), "veth7": (40, 20)}

    def count(pernic: bool, nowrap: bool) -> dict[str, SimpleNamespace]:
        return {name: SimpleNamespace(bytes_recv=got, bytes_sent=gave) for name, (got, gave) in links.items()}

    monkeypatch.setattr(psutil, "net_io_counters", count)
    source = Host(Path("/proc"))
    values = []
    for changed in ({}, {"eth0": (1100, 310)}, {"vf3": (10**12, 10**11)}, {"vf3": (10**12 + 7, 10**11 + 3)}):
        links |= changed
        (row,) = source.read(1)
        values.append((row.values["network_receive_bytes_total"], row.values["network_transmit_bytes_total"]))
        links.pop("veth7", None)
    source.close()
    assert values == [(1040, 320), (1140, 330), (1140, 330), (1147, 333)]
