"""The emulated machines' hardware: what each fault shows, and that healing undoes it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from emulator.cluster.fleet import Fleet
from emulator.hardware.gpu_load import Load, Meter
from emulator.hardware.gpu_model import Card
from emulator.hardware.kmsg import KernelMessages
from emulator.hardware.nvml_layout import GPU_IS_LOST
from emulator.hardware.nvml_state import Gpus
from emulator.hardware.procfs import strained_disks, strained_memory, strained_pressure
from emulator.hardware.rdma_port_model import Wire
from emulator.hardware.sysfs_rdma import Ports
from emulator.shared.fabric import Fabric, create
from emulator.shared.faults import AMOUNTS, order

FAST = ("--load=0.01", "--compute=0.04", "--optimizer=0.005", "--gradient-bytes=50000000", "--checkpoint-every=0")
BUSY = Load(compute=0.62, collective=0.17, copy=0.03, rate=4.1, wire=3.7e9)


def wait_for(holds: Callable[[], bool], what: str = "") -> None:
    """Fail unless it comes to hold within a minute."""
    limit = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < limit, what
        time.sleep(0.02)


class Place:
    """One machine of a fleet, as its files show it."""

    def __init__(self, fleet: Fleet, machine: str) -> None:
        self.fleet, self.machine = fleet, machine
        self.folder = fleet.folder / machine
        self.gpus = Gpus(self.folder / "gpus")
        self._before: dict[str, float] = {}

    def gpu(self, name: str) -> float:
        """A field of the second GPU."""
        return self.gpus.get(1, name)

    def port(self, name: str) -> str:
        """A file of the second port."""
        return (self.folder / "sys/class/infiniband/mlx5_1/ports/1" / name).read_text().strip()

    def log(self) -> str:
        """The kernel log."""
        return (self.folder / "dev/kmsg").read_text()

    def available(self) -> int:
        """Kilobytes of memory that are available."""
        text = (self.folder / "proc/meminfo").read_text()
        return int(text.split("MemAvailable:")[1].split()[0])

    def waits(self, resource: str) -> bool:
        """Whether threads wait for it a fifth of the time or more; true where the kernel does not measure it."""
        path = self.folder / f"proc/pressure_{resource}"
        measured = path.exists()
        return not measured or self.grows_faster(lambda: int(path.read_text().split("total=")[1].split()[0]), 2e5)

    def busy(self) -> int:
        """Milliseconds that the disks were busy, in all."""
        return sum(int(line.split()[12]) for line in (self.folder / "proc/diskstats").read_text().splitlines())

    def grows_faster(self, number: Callable[[], int], a_second: float) -> bool:
        """Whether it grows by more than that in a second, over half of one."""
        start, before = time.monotonic(), number()
        time.sleep(0.5)
        return number() - before > a_second * (time.monotonic() - start)


def clocked_down(at: Place) -> bool:
    """A power cap: lower clock, its reason, and time that counts."""
    capped = at.gpu("sm_clock_hertz") < 1.6e9 and int(at.gpu("throttle_reasons")) & 4
    return bool(capped) and at.gpu("throttle_power_seconds_total") > 0


def too_hot(at: Place) -> bool:
    """A thermal throttle: hot, slow, its reason, and time that counts."""
    slow = at.gpu("sm_clock_hertz") < 1.3e9 and int(at.gpu("throttle_reasons")) & 0x40
    return bool(slow) and at.gpu("temperature_celsius") > 80 and at.gpu("throttle_thermal_seconds_total") > 0


def flapped(at: Place) -> bool:
    """A link that is down: its state and the kernel's word, which names the interface and the adapter's place."""
    return at.port("state") == "1: DOWN" and at.log().endswith("mlx5_core 0000:2d:00.0 emu1np0: Link down\n")


SHOWN: dict[str, Callable[[Place], bool]] = {
    "power_cap": clocked_down,
    "thermal_throttle": too_hot,
    "pcie_downgrade": lambda at: (at.gpu("pcie_generation"), at.gpu("pcie_width")) == (4, 4),
    "nic_downgrade": lambda at: at.port("rate").startswith("100 Gb/sec"),
    "link_flap": flapped,
    "gpu_lost": lambda at: at.gpu("error") == GPU_IS_LOST and "Xid" not in at.log(),
    "memory_pressure": lambda at: at.available() < 0.6 * Place(at.fleet, "m00").available() and at.waits("memory"),
    "slow_disk": lambda at: at.grows_faster(at.busy, 500) and at.waits("io"),
    "xid_79": lambda at: (
        at.gpu("error") == GPU_IS_LOST
        and "NVRM: Xid (PCI:0000:2c:00): 79, " in at.log()
        and at.fleet.alive()["m01"]["rank 3"] == 1
    ),
}
"""What shows each fault on the second GPU or port of its machine; the one that ends the task comes last."""


def healthy(at: Place) -> bool:
    """No sign of any fault."""
    clock, reasons = at.gpu("sm_clock_hertz"), int(at.gpu("throttle_reasons"))
    link = (at.gpu("pcie_generation"), at.gpu("pcie_width"), at.gpu("error")) == (5, 16, 0)
    port = at.port("rate").startswith("400 Gb/sec") and at.port("state") == "4: ACTIVE"
    return clock > 1.9e9 and not reasons & ~1 and link and port


@pytest.fixture(scope="module")
def fleet(rooted: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Two machines of two GPUs, training."""
    with Fleet(tmp_path_factory.mktemp("fleet"), machines=2, gpus=2, rank_options=FAST) as fleet:
        wait_for(lambda: all(at.iterations > 2 for ranks in fleet.progress().values() for at in ranks))
        yield fleet


@pytest.mark.parametrize("kind", SHOWN)
def test_fault_shows_in_its_reading_until_it_is_healed(fleet: Fleet, kind: str) -> None:
    """A fault shows on its machine and device, on no other, and no more once it is healed."""
    at, other = Place(fleet, "m01"), Place(fleet, "m00")
    wait_for(lambda: healthy(at), "health before")
    fleet.inject(kind, "m01", 1)
    wait_for(lambda: SHOWN[kind](at), kind)
    assert healthy(other)
    assert at.gpus.get(0, "pcie_width") == 16
    assert at.gpus.get(0, "error") == 0
    fleet.heal()
    wait_for(lambda: healthy(at), "health afterwards")
    wait_for(lambda: not SHOWN[kind](at) or kind == "xid_79", "the reading stays")
    done = [ranks[1].iterations for ranks in fleet.progress().values()]
    wait_for(lambda: all(ranks[1].iterations > done[0] for ranks in fleet.progress().values()), "training")


def test_readings_follow_what_the_ranks_do(fleet: Fleet) -> None:
    """Training draws power and moves bytes; ranks that wait for one that hangs spin, and the one that hangs is idle."""
    at = Place(fleet, "m00")
    wait_for(lambda: healthy(at) and at.gpu("sm_active_ratio") > 0.1, "training")
    assert at.gpu("power_watts") > 150
    assert at.gpus.identity(1)[1].lower().endswith("2c:00.0")
    energy, sent = at.gpu("energy_joules_total"), int(at.port("counters/port_xmit_data"))
    wait_for(lambda: at.gpu("energy_joules_total") > energy, "energy")
    wait_for(lambda: int(at.port("counters/port_xmit_data")) > sent, "bytes")
    fleet.inject("rank_hang", "m00", 1)
    wait_for(lambda: at.gpu("duty_cycle_ratio") == 0 and at.gpus.get(0, "duty_cycle_ratio") > 0.97, "a hang")
    assert at.gpus.get(0, "sm_active_ratio") < 0.1
    fleet.heal()
    wait_for(lambda: at.gpu("sm_active_ratio") > 0.1, "training again")


def test_devices_differ_a_little_and_always_alike() -> None:
    """Two cards under one load differ by a few per cent at most, and in every run by the same."""

    def power(rank: int) -> float:
        card = Card.of(7, rank, neighbours=False)
        card.advance(BUSY, "none", 0.0, 0.25)
        return float(card.readings()["power_watts"])

    found = [power(rank) for rank in range(8)]
    assert found == [power(rank) for rank in range(8)]
    assert len(set(found)) == 8
    assert max(found) < 1.04 * min(found)


def test_meter_tells_work_from_waiting_and_death(tmp_path: Path) -> None:
    """A rank that gets on computes as it says; one that stands still spins in a collective, unless it is dead."""
    create(tmp_path / "fabric", 3, 1)
    fabric = Fabric(tmp_path / "fabric")
    meter, block = Meter(), fabric.ranks[1]
    assert meter.look(block, 10.0, True) == Load(held=False)
    block.iterations, block.iteration_seconds, block.wire_bytes = 2, 0.5, 6e8
    block.compute_seconds, block.collective_seconds = 0.2605, 0.11
    load = meter.look(block, 11.0, True)
    assert (load.compute, load.collective, load.rate) == pytest.approx((0.5, 0.22, 2.0))
    assert load.wire == pytest.approx(6e8)
    assert meter.look(block, 12.9, True).compute > 0
    assert meter.look(block, 13.1, True) == Load(collective=1.0)
    order(fabric, 1, "gpu_lost")
    assert meter.look(block, 13.2, True) == Load()
    assert meter.look(block, 11.1, False) == Load(held=False)


def test_thermal_throttle_comes_and_goes() -> None:
    """A hot GPU is slow for a while, cools, and is hot again."""
    card = Card.of(7, 3, neighbours=False)
    seen = []
    for _ in range(400):
        card.advance(BUSY, "thermal_throttle", AMOUNTS["thermal_throttle"], 0.25)
        seen.append(card.throttle)
    assert sum(before != after for before, after in pairwise(seen)) >= 6
    assert sorted(set(seen)) == pytest.approx([1.0, 1.7])
    card.advance(BUSY, "none", 0.0, 0.25)
    assert card.throttle == 1.0


def test_port_counts_what_is_sent(tmp_path: Path) -> None:
    """Bytes and packets grow with the collectives, waits only where the rate is low; a link that is down is still."""
    ports = Ports(tmp_path, 1, "mlx5_roce")
    wire = Wire(ports, "mlx5_0/1", "0000:1c:00.0", KernelMessages(tmp_path))
    names = ("port_xmit_data", "port_rcv_packets", "port_xmit_wait")

    def grown(fault: str, seconds: float) -> list[int]:
        before = [ports.count("mlx5_0/1", name) for name in names]
        wire.advance(BUSY, fault, AMOUNTS[fault], seconds)
        return [ports.count("mlx5_0/1", name) - was for name, was in zip(names, before, strict=True)]

    packets = int(BUSY.wire * 0.5 / 4096)
    assert grown("none", 0.5) == [packets * 1024, packets, 0]
    assert grown("nic_downgrade", 0.5)[2] > 1e5
    assert grown("link_flap", 0.5)[0] > 0  # it goes down at the end of this step
    assert grown("link_flap", 0.5) == [0, 0, 0]


MEMINFO = b"MemTotal:       24684096 kB\nMemFree:        20171064 kB\nMemAvailable:   24021896 kB\nBuffers:   17 kB\n"


def test_memory_is_taken_from_what_is_available() -> None:
    """A share of all memory is gone from free and available memory, which never fall to nothing; all else stays."""
    taken = dict(line.split(b":") for line in strained_memory(MEMINFO, 0.5).splitlines())
    assert int(taken[b"MemAvailable"].split()[0]) == 24021896 - 12342048
    assert int(taken[b"MemFree"].split()[0]) == 20171064 - 12342048
    assert (taken[b"MemTotal"].split()[0], taken[b"Buffers"]) == (b"24684096", b"   17 kB")
    assert b"MemFree:            1024 kB" in strained_memory(MEMINFO, 0.99)
    assert strained_memory(b"", 0.5) == b"\n"


def test_waiting_is_added_to_pressure() -> None:
    """Some threads wait by all of the amount, all threads by half of it."""
    text = b"some avg10=0.33 avg60=1.35 avg300=3.37 total=1807\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=611\n"
    assert strained_pressure(text, 1000.7) == text.replace(b"=1807", b"=2807").replace(b"=611", b"=1111")


def test_the_disk_that_works_most_gets_busier() -> None:
    """Milliseconds of work are added to the disk with most requests; a machine without disks stays without."""
    text = b" 254 0 vda 642 96 722 188 301 264 122 382 0 147 229\n 253 0 vdb 7 0 0 0 0 0 0 0 0 5 5\n"
    assert strained_disks(text, 250.9).splitlines()[0].split()[12:14] == [b"397", b"979"]
    assert strained_disks(text, 250.9).splitlines()[1].split() == text.splitlines()[1].split()
    assert strained_disks(b"", 250.9) == b""


def test_kernel_messages_have_the_form_of_dev_kmsg(tmp_path: Path) -> None:
    """Level, sequence, microseconds and flags stand before the text; the file goes away at the end."""
    log = KernelMessages(tmp_path)
    log.say(3, "NVRM: something")
    first, second = log.path.read_text().splitlines()
    assert [line.split(",")[:2] for line in (first, second)] == [["6", "0"], ["3", "1"]]
    assert second.endswith(",-;NVRM: something")
    assert int(first.split(",")[2]) <= int(second.split(",")[2])
    log.close()
    assert list(tmp_path.iterdir()) == []
