"""Names the ranks of a job from the members of its communicators.

A log of NCCL's counts ranks within each communicator, so that a process has as many numbers as communicators. Here a
process gets the number that it has in the largest communicator that holds all of them, which is the job's world.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

Process = tuple[str, ...]
"""Machine, and what tells its processes or GPUs apart."""


@dataclass(slots=True)
class Members:
    """Who is which rank of which communicator."""

    process: dict[tuple[str, int], Process] = field(default_factory=dict)
    size: dict[str, int] = field(default_factory=dict)

    def add(self, process: Process, communicator: str, rank: int, size: int) -> str:
        """Note a member; its key."""
        self.process[communicator, rank] = process
        self.size[communicator] = size
        return key(communicator, rank)

    def names(self) -> dict[str, str]:
        """Key of a member -> name of its rank: `rank 3`, or machine and process where no communicator has all."""
        seen = Counter((process, communicator) for (communicator, _), process in self.process.items())
        shared = {process for (process, _), times in seen.items() if times > 1}  # a process with several GPUs
        identity = {
            (communicator, rank): (*process, str(rank)) if process in shared else process
            for (communicator, rank), process in self.process.items()
        }
        of: dict[str, dict[Process, int]] = defaultdict(dict)
        for (communicator, rank), process in identity.items():
            of[communicator][process] = rank
        world = max(of, key=lambda name: (len(of[name]), self.size[name]), default="")
        everyone = len(of[world]) == len(set(identity.values())) if world else False
        return {
            key(*member): f"rank {of[world][process]}" if everyone else " ".join(process)
            for member, process in identity.items()
        }


def key(communicator: str, rank: int) -> str:
    """The key of a member."""
    return f"{communicator}/{rank}"
