"""The hardware of an emulated machine: a thread that lets GPUs, ports, kernel log and host state follow the ranks.

Everything lies below the machine's folder, as an agent with that folder for its root finds it: `gpus` (nvml_state.py),
`sys` and `ethtool` (ports.py), `dev` with GPUs' nodes and the kernel log, and `proc`, files that are mounted over the
machine's own.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from emulator.hardware.gpu_load import Meter
from emulator.hardware.gpu_model import LOST, Card
from emulator.hardware.kmsg import ERROR, KernelMessages
from emulator.hardware.nvml_layout import GPU_IS_LOST
from emulator.hardware.nvml_state import Gpus
from emulator.hardware.procfs import HostState, Strain
from emulator.hardware.rdma_port_model import Wire
from emulator.hardware.sysfs_pci import adapter_address, address_of, plant
from emulator.hardware.sysfs_rdma import Ports
from emulator.shared.fabric import Fabric
from emulator.shared.faults import KINDS

PERIOD_S = 0.25
VENDOR = "mlx5_roce"
STRAINS = {
    "memory_pressure": Strain(memory=0.5, memory_waits=0.45, io_waits=0.05),
    "slow_disk": Strain(io_waits=0.6, disk=0.97),
}
"""What a rank's fault does to the whole machine."""
CALM = Strain()
Pids = Sequence[int | None]


@dataclass(slots=True)
class Unit:
    """A rank's GPU and port."""

    rank: int
    card: Card
    wire: Wire
    meter: Meter = field(default_factory=Meter)
    fault: str = "none"
    pid: int | None = None


class Hardware:
    """`ranks` are the machine's, in order of GPUs; `pids` gives their processes, None for one that is dead.

    Raises OSError, GpusError.
    """

    def __init__(self, folder: Path, fabric: Path, ranks: Sequence[int], pids: Callable[[], Pids]) -> None:
        self.folder, self._fabric_path, self._pids = folder, fabric, pids
        self._fabric = Fabric(fabric)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._log = KernelMessages(folder)
        self._ports = Ports(folder, len(ranks), VENDOR, seed=ranks[0] + 1)
        self._gpus = Gpus(folder / "gpus", create=len(ranks))
        self._nodes = [folder / f"dev/nvidia{at}" for at in range(len(ranks))]
        for node in self._nodes:
            node.touch()  # what a program opens that uses the GPU
        self._host = HostState(folder / "proc")
        self._addresses = [address_of(self._gpus.identity(at)[1]) for at in range(len(ranks))]
        plant(folder, self._addresses, self._ports)
        self._units = [
            Unit(
                rank,
                Card.of(7, rank, len(ranks) > 1),
                Wire(self._ports, self._ports.names[at], adapter_address(at), self._log),
            )
            for at, rank in enumerate(ranks)
        ]
        self._thread = threading.Thread(target=self._run, name="hardware", daemon=True)
        self.advance(time.monotonic(), 0.0)

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs that is to see this hardware."""
        return {"EMULATED_GPUS": str(self.folder / "gpus"), **self._ports.environment}

    def start(self) -> None:
        """From now on, let time pass."""
        self._thread.start()

    def reopen(self) -> None:
        """The ranks restart on a fresh fabric."""
        with self._lock:
            self._fabric = Fabric(self._fabric_path)
            for unit in self._units:
                unit.meter = Meter()

    def _run(self) -> None:
        before = time.monotonic()
        while not self._stop.wait(PERIOD_S):
            now = time.monotonic()
            with self._lock:
                self.advance(now, now - before)
            before = now

    def advance(self, now: float, seconds: float) -> None:
        """One step of all devices; monotonic seconds, and how many have passed."""
        strain = CALM
        for index, (unit, pid) in enumerate(zip(self._units, self._pids(), strict=True)):
            block = self._fabric.ranks[unit.rank]
            fault, amount = KINDS[block.fault], block.amount
            load = unit.meter.look(block, now, pid is not None)
            if fault != unit.fault:
                self._change(index, unit, fault)
            unit.card.advance(load, fault, amount, seconds)
            unit.wire.advance(load, fault, amount, seconds)
            block.throttle, block.link_down = unit.card.throttle, unit.wire.down
            block.lost = fault == "gpu_lost"
            strain = STRAINS.get(fault, strain)
            self._gpus.set(index, **unit.card.readings())
            if pid != unit.pid:
                unit.pid = pid
                self._gpus.processes(index, {pid: int(unit.card.memory_used)} if pid else {})
        self._host.update(strain, seconds)

    def _change(self, index: int, unit: Unit, fault: str) -> None:
        """What happens once, at the beginning of a fault or at its end."""
        unit.fault = fault
        self._gpus.set(index, error=GPU_IS_LOST if fault in LOST else 0)
        if fault == "xid_79":
            address = self._addresses[index]
            self._gpus.xid(index, 79)
            self._log.say(ERROR, f"NVRM: GPU at PCI:{address[:-2]}: {self._gpus.identity(index)[0]}")
            self._log.say(
                ERROR,
                f"NVRM: Xid (PCI:{address[:-2]}): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
            )
            self._log.say(ERROR, f"NVRM: GPU {address}: GPU has fallen off the bus.")

    def close(self) -> None:
        """Stop, uncover /proc, remove everything."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self._host.close()
        for node in self._nodes:
            node.unlink(missing_ok=True)
        self._log.close()
        (self.folder / "gpus").unlink(missing_ok=True)
        for name in ("sys", "ethtool"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
