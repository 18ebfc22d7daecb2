"""Brief: what an alert says beside the verdict: likely cause, numbers, next step, and which hardware is meant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True, slots=True)
class Number:
    """One reading on both sides, means since the onset; rates a second where it is a counter."""

    metric: str
    device: str | None
    value: float
    before: float
    """The machine's own mean before the onset; NaN where it is not known."""
    usual: float
    """Median of the peers."""
    unit: str
    text: str
    """Both sides in words, such as `memory clock 1.14 GHz, peers 1.95 GHz` ..."""
    was: str = ""
    """... and what it was before the onset, such as `1.95 GHz`; empty where that is not known."""

    def as_json(self) -> dict[str, object]:
        """The object that sinks pass on; an unknown mean is null."""
        found = asdict(self)
        return {name: None if value != value else value for name, value in found.items()}


@dataclass(frozen=True, slots=True)
class Brief:
    """What `peerwatch show` knows, in short; empty where nothing is known."""

    kind: str = ""
    """Name of the likely kind of fault."""
    likely: str = ""
    """The same in words."""
    advice: str = ""
    """What to do next."""
    notes: tuple[str, ...] = ()
    numbers: tuple[Number, ...] = ()
    """The most telling first."""
    peers: int = 0
    """How many machines it was compared with."""
    hardware: Mapping[str, str] = field(default_factory=dict)
    """Of the GPU that is meant: uuid, serial, pci_address, as far as they are known."""

    def as_json(self) -> dict[str, object]:
        """The part of an alert's object that is told by this."""
        return {
            "likely_kind": self.kind,
            "likely": self.likely,
            "next": self.advice,
            "notes": list(self.notes),
            "numbers": [number.as_json() for number in self.numbers],
            "peers": self.peers,
            "hardware": dict(self.hardware),
        }
