"""The kernel log from now on: messages of drivers and the kernel on faults, as events.

Bounded: 300 messages a reading, the rest waits in the kernel's own buffer; what that overwrites is counted and said.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from agent.context import Context, SourceUnavailableError
from agent.kernel_log.kmsg import Log, Record
from agent.kernel_log.patterns import Fact, read
from agent.kernel_log.xid import Xids
from agent.probes.training_processes import TrainingProcess, TrainingProcesses
from agent.system.events import Event, Repeats, samples
from agent.system.pci import Bus
from store.schema.sample import Sample

LIMIT = 300
FLAP_NS = 300_000_000_000
"""Down twice within five minutes is a flap (ByteRobust, section on inspection)."""
_STATES = frozenset({"link_up", "link_down", "nfs_stalled", "nfs_resumed", "lustre_lost", "lustre_resumed"})
"""Each ends another: a repeat is news."""
_FRAGMENTS = 4096


class KernelLog:
    """Reads what is new; repeats of an event within a minute are one event with their number."""

    def __init__(self, log: Log, bus: Bus, training: TrainingProcesses) -> None:
        self._log, self._bus, self._training = log, bus, training
        self._xids, self._repeats = Xids(), Repeats()
        self._downs: dict[str, deque[int]] = {}  # by device, the times of its last two link losses
        self._begun = ""
        self._lost_gpu = ""
        self._reported_lost = 0

    def read(self, now: int) -> list[Sample]:
        """A row for each event that is news."""
        records = self._log.read(LIMIT)
        events = self._repeats.due(now)
        if records:
            living = self._training.living(now)
            for record in records:
                events += self._events(now, self._whole(record), living)
        lost = self._log.lost + self._repeats.unfolded
        if lost > self._reported_lost:
            message = f"{lost - self._reported_lost} messages of the kernel were lost: there were too many"
            events.append(Event("log_overrun", "", "info", message))
            self._reported_lost = lost
        return samples("kernel_log", now, events)

    def close(self) -> None:
        """Let go of the log."""
        self._log.close()

    def _whole(self, record: Record) -> str:
        """The line that a record ends; older kernels give a line in fragments."""
        text = (self._begun + record.text)[:_FRAGMENTS]
        self._begun = text if record.continues else ""
        return text

    def _events(self, now: int, text: str, living: Mapping[int, TrainingProcess]) -> list[Event]:
        fact = read(self._spelled_out(text))
        if fact is None:
            return []
        device = self._device(now, fact, living)
        if fact.xid is not None:
            event = self._xids.classify(now, device, fact.xid, fact.message)
            if event is not None and fact.message:
                event = replace(event, message=f"{event.message} ({fact.message})")
        else:
            event = Event(fact.code, device, fact.severity, fact.message)
        if event is None:
            return []
        news = event if event.code in _STATES else self._repeats.admit(now, event)
        return [*([news] if news else []), *self._flap(now, event)]

    def _spelled_out(self, text: str) -> str:
        """The driver may report a lost GPU in three messages, of which only the first has its address."""
        if text.startswith("NVRM: The NVIDIA GPU "):
            self._lost_gpu = text
        elif self._lost_gpu and text.startswith("NVRM: fallen off the bus"):
            text, self._lost_gpu = f"{self._lost_gpu} {text[6:]}", ""
        return text

    def _device(self, now: int, fact: Fact, living: Mapping[int, TrainingProcess]) -> str:
        if fact.kind == "pci":
            return self._bus.device(fact.place, now)
        if fact.kind == "net":
            return self._bus.interface(fact.place)
        if fact.kind == "pid":
            trainer = living.get(int(fact.place))
            return f"gpu:{trainer.gpu}" if trainer else ""
        return f"{fact.kind}:{fact.place}" if fact.kind else ""

    def _flap(self, now: int, event: Event) -> list[Event]:
        """A training port that goes down twice in five minutes is at fault; one loss may be the switch's, or meant."""
        if event.code != "link_down" or not event.device.startswith("rdma:"):
            return []
        if len(self._downs) > 256:
            self._downs.clear()
        downs = self._downs.setdefault(event.device, deque(maxlen=2))
        downs.append(now)
        if len(downs) < 2 or not 0 <= now - downs[0] < FLAP_NS:
            return []
        seconds = (now - downs[0]) / 1e9
        message = f"link lost twice in {seconds:.0f} s"
        flap = self._repeats.admit(now, Event("link_flap", event.device, "crit", message))
        return [flap] if flap else []


def open_source(context: Context) -> KernelLog:
    """The source, ready to read. Raises SourceUnavailableError where there is no kernel log, or no right to it."""
    root = Path(context.config.root)
    path = root / "dev/kmsg"
    try:
        log = Log(path)
    except FileNotFoundError:
        raise SourceUnavailableError(
            f"there is no {path}: in a container, mount the machine's and set agent.root"
        ) from None
    except PermissionError:
        raise SourceUnavailableError(
            f"{path} may not be read: run as root or with CAP_SYSLOG (kernel.dmesg_restrict is 1)"
        ) from None
    return KernelLog(log, Bus(root), context.training)
