"""The kernel log: its records, what its lines tell, and the events that come of them."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.config import AgentConfig
from agent.context import Context, SourceUnavailableError
from agent.kernel_log import kmsg
from agent.kernel_log.patterns import read
from agent.sources.kernel_log import LIMIT, KernelLog, open_source
from agent.system.pci import Bus, normal

SECOND = 10**9
START = 1_780_000_000 * SECOND

LINES = (Path(__file__).parent / "kernel_lines.txt").read_text().splitlines()
"""Lines as drivers write them: code | severity | kind | place | line."""
NOTHING = """
usb 1-6: Manufacturer: Realtek
ata1: SATA link down (SStatus 0 SControl 300)
IPv6: ADDRCONF(NETDEV_CHANGE): eth0: link becomes ready
EXT4-fs (vda): mounted filesystem with ordered data mode. Quota mode: none.
NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.158.01
nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Severity 5 Engine instance 33 Sub-engine instance 00
mlx5_core 0000:ab:00.0 mlx5_5: Port: 1 Link INIT
EDAC MC: UMC1 chip selects:
oom_reaper: reaped process 4410 (python3), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB
pcieport 0000:00:1c.1: AER: Correctable error message received from 0000:03:00.0
say: NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.
python3: mlx5_core 0000:ab:00.0 mlx5_5: Port: 1 Link DOWN
"""


class Machine:
    """A folder that stands for a machine, with a kernel log and a source that reads it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.log = root / "dev/kmsg"
        self.log.parent.mkdir(parents=True)
        self.log.write_text("6,0,11,-;NVRM: Xid (PCI:0000:17:00): 48, said before the agent came\n")
        self.sequence = 100

    def add(self, place: str, files: dict[str, str]) -> None:
        """A device on the bus, or a network interface."""
        folder = self.root / "sys" / place
        folder.mkdir(parents=True)
        for name, text in files.items():
            (folder / name).write_text(text)

    def open(self) -> KernelLog:
        """The source."""
        return open_source(Context(AgentConfig(machine="m43", root=str(self.root))))

    def say(self, *lines: str) -> None:
        """Append records."""
        with self.log.open("a") as file:
            for line in lines:
                self.sequence += 1
                file.write(f"3,{self.sequence},{self.sequence * 1009},-;{line}\n")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """An empty one."""
    return Machine(tmp_path)


@pytest.fixture
def source(machine: Machine) -> Iterator[KernelLog]:
    """Its source."""
    one = machine.open()
    yield one
    one.close()


def events(source: KernelLog, now: int) -> list[dict[str, Any]]:
    """What one reading brings."""
    return [dict(sample.values) for sample in source.read(now)]


@pytest.mark.parametrize("row", LINES)
def test_lines(row: str) -> None:
    """A line as drivers write it tells its code, how bad it is, and where."""
    code, severity, kind, place, line = (part.strip() for part in row.split("|", 4))
    fact = read(line)
    assert fact is not None
    assert (fact.code, fact.severity, fact.kind, fact.place) == (code, severity, kind, place)
    assert (fact.xid is not None) == code.startswith("xid:")


@pytest.mark.parametrize("line", NOTHING.strip().splitlines())
def test_lines_that_tell_nothing(line: str) -> None:
    """What is no fault, what repeats another line, and what only quotes a driver is nothing."""
    assert read(line) is None


@given(st.text(max_size=300) | st.sampled_from(LINES).flatmap(lambda t: st.permutations(t).map("".join)))
def test_any_line(text: str) -> None:
    """Whatever a line holds, it tells something bounded or nothing."""
    fact = read(text)
    assert fact is None or len(fact.message) <= 240


@given(st.binary(max_size=400))
def test_any_record(line: bytes) -> None:
    """Whatever bytes come, they are a message of the kernel or nothing."""
    record = kmsg.parse(line)
    assert record is None or (0 <= record.level <= 7 and record.sequence >= 0)


def test_records() -> None:
    """Dictionary lines are left out, line feeds within are spaces, programs' messages are not the kernel's."""
    record = kmsg.parse(
        b"4,339,5140900,-,caller=T23;NVRM: The NVIDIA GPU\\x0aNVRM: off\n SUBSYSTEM=pci\n DEVICE=+pci:1\n"
    )
    assert record == kmsg.Record(4, 339, False, "NVRM: The NVIDIA GPU NVRM: off")
    assert kmsg.parse(b"12,340,5140907,-;NVRM: Xid (PCI:0000:3b:00): 79, forged") is None
    fragment = kmsg.parse(b"6,341,5140911,c;begins")
    assert fragment is not None
    assert fragment.continues


def test_only_from_now_on(machine: Machine, source: KernelLog) -> None:
    """Messages from before the agent's start are not reported; later ones are, once."""
    assert events(source, START) == []
    machine.say("NVRM: Xid (PCI:0000:3b:00): 95, pid=613, name=python3, Uncontained: FBHUB. RST: Yes")
    (event,) = events(source, START + SECOND)
    assert (event["source"], event["code"], event["severity"]) == ("kernel_log", "xid:95", "crit")
    assert event["device"] == "pci:0000:3b:00.0"
    assert "uncontained memory error" in event["message"]
    assert "FBHUB" in event["message"]
    assert events(source, START + 2 * SECOND) == []


def test_gpus_are_numbered_by_the_bus(machine: Machine) -> None:
    """GPUs are numbered in the order of their addresses, nothing else counts, and a lost GPU keeps its number."""
    for place, kind in (("0000:c9:00.0", "0x030200"), ("0000:1b:00.0", "0x030200"), ("0000:1c:00.0", "0x068000")):
        machine.add(f"bus/pci/devices/{place}", {"vendor": "0x10de\n", "class": f"{kind}\n"})
    machine.add("bus/pci/devices/0001:02:00.0", {"vendor": "0x10de\n", "class": "0x030000\n"})
    machine.add("bus/pci/devices/0000:44:00.0", {"vendor": "0x15b3\n", "class": "0x020700\n"})
    machine.add("bus/pci/devices/0000:44:00.0/infiniband/mlx5_3", {})
    bus = Bus(machine.root)
    assert [bus.device(place, START) for place in ("0000:1b:00", "0000:C9:00.0", "0001:02:00")] == [
        "gpu:0",
        "gpu:1",
        "gpu:2",
    ]
    assert bus.device("0000:44:00.0", START) == "rdma:mlx5_3/1"
    assert bus.device("0000:45:00.0", START) == "pci:0000:45:00.0"
    for name in ("vendor", "class"):
        (machine.root / "sys/bus/pci/devices/0000:1b:00.0" / name).unlink()
    assert bus.device("0000:c9:00.0", START + 60 * SECOND) == "gpu:1"
    assert bus.device("nonsense", START) == ""
    assert normal("10000:3B:00.1") == "10000:3b:00.1"


def test_requests_25_off_the_bus_without_an_xid(machine: Machine, source: KernelLog) -> None:
    """A GPU that the driver calls lost in other words, over three messages, is Xid 79, and once with its Xid."""
    machine.say("NVRM: The NVIDIA GPU 0000:b3:00.0", "NVRM: (PCI ID: 10de:26b5) installed in this system has")
    machine.say("NVRM: fallen off the bus and is not responding to commands.")
    machine.say("NVRM: Xid (PCI:0000:b3:00): 79, pid=17, name=x, GPU has fallen off the bus.")
    (event,) = events(source, START)
    assert (event["code"], event["device"], event["severity"]) == ("xid:79", "pci:0000:b3:00.0", "crit")


def test_requests_24_a_storm_of_xids(machine: Machine, source: KernelLog) -> None:
    """Aftermath is folded into what caused it, repeats into one row with their number."""
    machine.say("NVRM: Xid (PCI:0000:5a:00): 48, pid=77, name=python3, An uncorrectable double bit error")
    machine.say(*(f"NVRM: Xid (PCI:0000:5a:00): 45, pid=77, name=python3, Ch {n:08x}" for n in range(211)))
    machine.say(*(f"NVRM: Xid (PCI:0000:5a:00): 48, pid=77, name=python3, again {n}" for n in range(83)))
    assert [event["code"] for event in events(source, START)] == ["xid:48"]
    (again,) = events(source, START + 61 * SECOND)
    assert "83 more times in 61 s" in again["message"]


def test_a_storm_is_bounded(machine: Machine, source: KernelLog) -> None:
    """One reading takes so many messages and no more; the others come with the next."""
    machine.say(*["EXT4-fs (vda): mounted"] * (2 * LIMIT), "Out of memory: Killed process 91 (python3)")
    assert events(source, START) == events(source, START + 1) == []
    assert [event["code"] for event in events(source, START + 2)] == ["oom_kill"]


def test_requests_32_a_flapping_link(machine: Machine) -> None:
    """A training port that is lost twice in five minutes is crit; once is not, nor is another interface."""
    machine.add("class/net/ens7np0/device/infiniband/mlx5_7", {})
    source = machine.open()
    lost, back = "mlx5_core 0000:ab:00.0 ens7np0: Link down", "mlx5_core 0000:ab:00.0 ens7np0: Link up"
    machine.say(lost, back)
    first = events(source, START)
    assert [(e["code"], e["severity"], e["device"]) for e in first] == [
        ("link_down", "warn", "rdma:mlx5_7/1"),
        ("link_up", "info", "rdma:mlx5_7/1"),
    ]
    machine.say(lost, back)
    assert [(e["code"], e["severity"]) for e in events(source, START + 97 * SECOND)] == [
        ("link_down", "warn"),
        ("link_flap", "crit"),
        ("link_up", "info"),
    ]
    machine.say(*["bnxt_en 0000:21:00.1 eno3: NIC Link is Down"] * 2)
    assert [(e["code"], e["device"]) for e in events(source, START + 99 * SECOND)] == [("link_down", "net:eno3")] * 2
    source.close()


def test_losses_far_apart_are_no_flap(machine: Machine, source: KernelLog) -> None:
    """Two losses an hour apart are two losses."""
    for hours in (0, 1):
        machine.say("mlx5_core 0000:ab:00.0 mlx5_5: Port: 1 Link DOWN")
        assert [e["code"] for e in events(source, START + hours * 3600 * SECOND)] == ["link_down"]


def test_fragments_are_joined(machine: Machine, source: KernelLog) -> None:
    """A line that an older kernel gives in pieces is read whole."""
    with machine.log.open("a") as file:
        file.write("3,7,13,c;watchdog: BUG: soft lock\n3,8,14,+;up - CPU#3 st\n3,9,15,-;uck for 23s!\n")
    assert [event["code"] for event in events(source, START)] == ["soft_lockup"]


def test_half_a_line_waits(machine: Machine, source: KernelLog) -> None:
    """A record that is still being written is read when it is whole."""
    with machine.log.open("a") as file:
        file.write("3,7,13,-;EDAC MC5: 1 UE mem")
        file.flush()
        assert events(source, START) == []
        file.write("ory read error on DIMM 19\n")
    assert [event["code"] for event in events(source, START)] == ["edac"]


def test_a_log_that_is_cut_or_replaced(machine: Machine, source: KernelLog) -> None:
    """A file that begins again is read from its beginning."""
    machine.log.write_text("")
    assert events(source, START) == []
    machine.say("nfs: server 10.0.0.21 not responding, still trying")
    assert [event["code"] for event in events(source, START + 1)] == ["nfs_stalled"]
    machine.log.unlink()
    assert events(source, START + 2) == []
    machine.say("nfs: server 10.0.0.21 OK")
    assert [event["code"] for event in events(source, START + 3)] == ["nfs_resumed"]


def test_a_log_that_goes_while_it_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that is gone again when it is to be opened leaves the old one open: no other user's file is read."""
    path = tmp_path / "kmsg"
    path.write_text("")
    log = kmsg.Log(path)
    path.rename(tmp_path / "old")
    path.write_text("")
    really = os.open
    monkeypatch.setattr(os, "open", lambda *_: (_ for _ in ()).throw(FileNotFoundError(path)))
    assert log.read(5) == []
    with path.open("a") as file, (tmp_path / "old").open("a") as old:
        old.write("3,7,13,-;from the old one\n")
        old.flush()
        assert [record.text for record in log.read(5)] == ["from the old one"]
        monkeypatch.setattr(os, "open", really)
        file.write("3,8,14,-;from the new one\n")
        file.flush()
        assert [record.text for record in log.read(5)] == ["from the new one"]
    log.close()


def test_a_fifo(tmp_path: Path) -> None:
    """A FIFO is read as it fills, whether anybody writes to it or not."""
    (tmp_path / "dev").mkdir()
    os.mkfifo(tmp_path / "dev/kmsg")
    source = open_source(Context(AgentConfig(root=str(tmp_path))))
    assert events(source, START) == []
    with (tmp_path / "dev/kmsg").open("w") as file:
        file.write("2,5,6,-;EXT4-fs (sdb7): Remounting filesystem read-only\n")
        file.flush()
        assert [event["device"] for event in events(source, START)] == ["disk:sdb7"]
        assert events(source, START) == []
    assert events(source, START) == []
    source.close()


def test_an_overrun_is_counted_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device with records that were overwritten gives their number, and reading goes on."""
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/kmsg").symlink_to("/dev/null")
    source = open_source(Context(AgentConfig(root=str(tmp_path))))
    script: list[bytes | OSError] = [
        b"6,500,1,-;harmless\n",
        BrokenPipeError(errno.EPIPE, "overwritten"),
        b"4,541,2,-;Out of memory: Killed process 57 (python3)\n SUBSYSTEM=x\n",
        BlockingIOError(errno.EAGAIN, "no more"),
    ]

    def scripted(_: int, size: int) -> bytes:
        assert size == kmsg.RECORD_BYTES
        step = script.pop(0)
        if isinstance(step, OSError):
            raise step
        return step

    monkeypatch.setattr(kmsg.os, "read", scripted)
    killed, lost = events(source, START)
    assert killed["code"] == "oom_kill"
    assert (lost["code"], lost["severity"]) == ("log_overrun", "info")
    assert "40 messages" in lost["message"]
    script.append(BlockingIOError(errno.EAGAIN, "no more"))
    assert events(source, START) == []
    monkeypatch.undo()
    source.close()


@pytest.mark.skipif(not os.access("/dev/kmsg", os.R_OK), reason="this machine's kernel log may not be read")
def test_the_real_log() -> None:
    """The machine's own log opens and can be read without waiting."""
    source = open_source(Context(AgentConfig()))
    for now in (START, START + SECOND):
        for sample in source.read(now):
            assert sample.table == "event"
    source.close()


def test_no_log(tmp_path: Path) -> None:
    """Without a kernel log the reason and the mend are one line."""
    with pytest.raises(SourceUnavailableError, match=r"there is no .*kmsg: in a container"):
        open_source(Context(AgentConfig(root=str(tmp_path))))


def test_no_right_to_the_log(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the right to read it the missing capability is named."""

    def refused(*_: Any) -> int:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(kmsg.os, "open", refused)
    with pytest.raises(SourceUnavailableError, match="CAP_SYSLOG"):
        machine.open()
