"""Brief: what an alert carries besides the verdict: likely cause, numbers, next step, hardware identity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True, slots=True)
class Number:
    """One metric of the machine and of its peers: means since the onset; counters as rates per second."""

    metric: str
    device: str | None
    value: float
    before: float
    """The machine's own mean before the onset; NaN where unknown."""
    usual: float
    """Median of the peers."""
    unit: str
    text: str
    """Machine and peers in words, such as `memory clock 1.14 GHz, peers 1.95 GHz`."""
    was: str = ""
    """The mean before the onset in words, such as `1.95 GHz`; empty where unknown."""

    def as_json(self) -> dict[str, object]:
        """The object that sinks pass on; an unknown mean is null."""
        found = asdict(self)
        return {name: None if value != value else value for name, value in found.items()}


@dataclass(frozen=True, slots=True)
class Brief:
    """A summary of what `peerwatch show` prints; empty where nothing is known."""

    kind: str = ""
    """Name of the likely kind of fault."""
    likely: str = ""
    """The likely kind of fault in words."""
    advice: str = ""
    """What to do next."""
    notes: tuple[str, ...] = ()
    numbers: tuple[Number, ...] = ()
    """In order of relevance."""
    peers: int = 0
    """Number of machines that it was compared with."""
    hardware: Mapping[str, str] = field(default_factory=dict)
    """Of the GPU: uuid, serial and pci_address, as far as known."""
    earlier: Mapping[str, object] = field(default_factory=dict)
    """Earlier incidents: times, last, others, elsewhere, days; empty where they were not looked up."""

    def as_json(self) -> dict[str, object]:
        """The part of an alert's JSON object that comes from the brief."""
        return {
            "likely_kind": self.kind,
            "likely": self.likely,
            "next": self.advice,
            "notes": list(self.notes),
            "numbers": [number.as_json() for number in self.numbers],
            "peers": self.peers,
            "hardware": dict(self.hardware),
            "earlier": dict(self.earlier),
        }
