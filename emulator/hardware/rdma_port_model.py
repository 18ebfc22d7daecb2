"""What an emulated RDMA port reads as: traffic after its GPU's collectives, rate and state after its fault."""

from __future__ import annotations

from dataclasses import dataclass

from emulator.hardware.gpu_load import Load
from emulator.hardware.kmsg import INFO, WARNING, KernelMessages
from emulator.hardware.sysfs_rdma import Ports

RATE, PACKET_BYTES, UP_S = 4e11, 4096, 4.0
BACKGROUND = 4e10  # bytes a second of another program


@dataclass(slots=True)
class Wire:
    """One port of a machine. `address` is its adapter's place on the bus."""

    ports: Ports
    name: str
    address: str
    log: KernelMessages
    down: bool = False
    _rate: float = RATE
    _flapping_s: float = 0.0
    _owed: float = 0.0

    def advance(self, load: Load, fault: str, amount: float, seconds: float) -> None:
        """Let time pass under a load and a fault."""
        self._carry(load, fault, seconds)
        rate = RATE / amount if fault == "nic_downgrade" else RATE
        if rate != self._rate:
            self._rate = rate
            self.ports.set(self.name, rate=rate)
        self._flap(fault, amount, seconds)

    def _carry(self, load: Load, fault: str, seconds: float) -> None:
        """A ring receives as much as it sends; where the rate is low, what is to be sent waits for credit."""
        others = BACKGROUND if fault == "background_traffic" else 0.0
        self._owed += (load.wire + others) * seconds * (not self.down)
        packets = int(self._owed / PACKET_BYTES)
        if packets:
            self._owed -= packets * PACKET_BYTES
            size = packets * PACKET_BYTES
            waits = packets * 4 if fault == "nic_downgrade" else 0
            more = {"transmit_wait_ticks": waits} if waits else {}
            self.ports.add(
                self.name,
                transmit_bytes=size,
                receive_bytes=size,
                transmit_packets=packets,
                receive_packets=packets,
                **more,
            )

    def _flap(self, fault: str, amount: float, seconds: float) -> None:
        """Down for the fault's amount of seconds, up for some, and so on."""
        at = self._flapping_s % (amount + UP_S)
        self._flapping_s = self._flapping_s + seconds if fault == "link_flap" else 0.0
        down = fault == "nic_down" or (fault == "link_flap" and at < amount)
        if down != self.down:
            self.down = down
            self.ports.set(self.name, state="DOWN" if down else "ACTIVE")
            said = f"mlx5_core {self.address} {self.ports.interface(self.name)}: Link {'down' if down else 'up'}"
            self.log.say(WARNING if down else INFO, said)
