"""The desk: makes alerts of verdicts and hands them to the sinks, each of which has a thread and a ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from detector.alert import Alert, Book, Sink
from detector.verdict import Verdict
from detector.worker import Worker


@dataclass
class Desk:
    """All sinks; a sink that fails or hangs keeps nothing from the others, nor from the detector."""

    sinks: Mapping[str, Sink]
    folder: Path
    book: Book = field(default_factory=Book)
    workers: list[Worker] = field(default_factory=list)
    quiet: Callable[[Verdict], bool] = lambda verdict: False
    """Whether somebody has acknowledged this: then it is not repeated."""
    _history: dict[str, Alert] = field(default_factory=dict)

    def begin(self, said: Iterable[Verdict]) -> None:
        """Take up the incidents that earlier verdicts, in order of time, leave."""
        self._history = self.book.take_up(said)

    def hear(self, verdicts: Iterable[Verdict], machines: frozenset[str], now: int) -> None:
        """New verdicts, and the machines that are watched, at `now` (Unix ns); returns at once.

        At the first call each sink hears what it has missed of earlier incidents.
        """
        if not self.workers:
            self._start(len(machines))
        for verdict in verdicts:
            alert = self.book.enter(verdict)
            for worker in self.workers if alert else ():
                assert alert is not None
                worker.take(replace(alert, fleet=len(machines)), now)
        still = [
            replace(alert, fleet=len(machines), standing=self.book.standing(machine))
            for (_, machine), alert in self.book.open.items()
            if not self.quiet(alert.finding)
        ]
        well = machines - {machine for _, machine in self.book.open}
        for worker in self.workers:
            worker.turn(still, well, now)

    def _start(self, fleet: int) -> None:
        history = {name: replace(alert, fleet=fleet) for name, alert in self._history.items()}
        self.workers = [Worker(name, sink, self.folder / f"{name}.json") for name, sink in self.sinks.items()]
        self._history = {}
        for worker in self.workers:
            worker.begin(history)

    def close(self) -> None:
        """Let each sink tell what it can at once."""
        for worker in self.workers:
            worker.close()
