"""What the engine asks of a method; a method inherits the answers that say nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from detector.model.verdict import Finding, Verdict
from detector.stats.arrays import Floats, Ints
from detector.timeseries.rows import Rows
from detector.topology.tasks import Tasks
from store.schema.time import NEVER

if TYPE_CHECKING:
    from detector.methods.peers.state import Panel


@dataclass(frozen=True, slots=True)
class Excursions:
    """The evidence of one table or method at a step, from which `peerwatch calibrate` learns thresholds."""

    name: str
    """The table or the method."""
    machine: Ints
    """[cell]: a number for the machine that the evidence is on."""
    evidence: Floats
    """[cell]: in multiples of the threshold before `threshold_multipliers` apply."""
    judged: Ints
    """The numbers of the machines that were judged at this step."""
    machines: int
    """How many numbers there are."""


class Method(Protocol):
    """A way of judging with its own state: plain data, so that it can be saved and restored."""

    def step(self, now: int, rows: Mapping[str, Rows], tasks: Tasks) -> list[Finding]:
        """The findings at `now` (Unix ns), after the rows that came since the last step."""

    def annotate(self, findings: list[Finding]) -> list[Finding]:
        """The findings of all methods of one step, with what this method knows of them."""
        return findings

    def restore(self, verdicts: Iterable[Verdict]) -> None:
        """Resume the lasting causes among the open verdicts of an earlier detector."""
        return

    def newest(self) -> int:
        """The time of the newest row that is a sign of life, Unix ns; NEVER if the method does not follow them."""
        return NEVER

    def evict(self, before: int, tasks: Tasks) -> None:
        """Drop the state of machines and devices last read before `before` (Unix ns), and drop them from the tasks."""
        return

    def compared(self) -> Mapping[str, Panel] | None:
        """The peer comparison by table; None if the method makes none."""
        return None

    def evidence(self) -> dict[str, float]:
        """By machine, the strongest evidence in multiples of what raises an alarm."""
        return {}

    def excursions(self) -> Iterator[Excursions]:
        """The evidence of this step, by table."""
        return iter(())
