"""Fault after fault on one emulated fleet under one detector, as a program: to start a fleet for each costs most.

python -m tests.cli.service.demo.series FOLDER SERIES    SERIES: a JSON object of its fields; prints an object by fault
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

from cli.agent_process import agent_command
from cli.demo.emulated import DETECT_S, LINGER_S, START_S
from detector.config import Config
from detector.service.runner import Runner
from emulator.cluster.fleet import Fleet
from store.open import open_store
from tests.cli.conftest import ROOT
from tests.cli.service.demo.life import Listener

CALM_S = 12.0
"""Seconds of training between two faults."""


@dataclass(frozen=True)
class Series:
    """Faults in this order, each on another machine; without a library the emulated one."""

    kinds: tuple[str, ...]
    shape: tuple[int, int, int, int]
    """Machines, GPUs of each, size of the tensor groups, pipeline stages."""
    healthy_s: float
    """Of training before the first fault."""
    seed: int
    nccl: str | None = None
    training: str = "blocking"

    def words(self) -> list[str]:
        """Options of a demo of this shape."""
        names = ("--machines", "--gpus", "--tensor", "--pipeline", "--healthy", "--seed")
        values = (*self.shape, self.healthy_s, self.seed)
        return [str(word) for pair in zip(names, values, strict=True) for word in pair]

    def outcomes(self, folder: Path) -> dict[str, Any]:
        """What a process of its own, with priority over other tests, says of each fault, as `peerwatch demo --json`.

        Under "none" are the verdicts of the time before the first fault.
        """
        words = [sys.executable, "-m", "tests.cli.service.demo.series", str(folder), json.dumps(asdict(self))]
        order = ["nice", "--adjustment=-10", *words]
        found: dict[str, Any] = json.loads(subprocess.run(order, stdout=subprocess.PIPE, check=True, cwd=ROOT).stdout)
        return found

    def run(self, folder: Path) -> dict[str, Any]:
        """Run it here."""
        folder.mkdir(parents=True)
        data, place = folder / "readings.db", folder / "fleet"
        command = partial(_agent, data, place)
        library = Path(self.nccl) if self.nccl else None
        fleet = Fleet(place, *self.shape, self.seed, command, nccl=library, training=self.training)
        with closing(open_store(str(data), create=True)) as store, fleet:
            listener = Listener(Runner(store, Config(), time.time_ns()))
            listener.listen(START_S, until=lambda: _all_train(fleet))
            listener.listen(self.healthy_s)
            return {"none": _outcome(listener, "none")} | self._strike(fleet, listener)

    def _strike(self, fleet: Fleet, listener: Listener) -> dict[str, Any]:
        chance, found = random.Random(self.seed), {}
        names = chance.sample(fleet.names, len(fleet.names))
        for kind, machine in zip(self.kinds, cycle(names), strict=False):
            gpu = chance.randrange(self.shape[1])
            start = fleet.inject(kind, machine, gpu)
            listener.listen(DETECT_S, until=lambda: bool(_raised(listener)))
            listener.listen(LINGER_S)
            if len(found) + 1 < len(self.kinds):
                fleet.heal()
                listener.listen(CALM_S)
            found[kind] = _outcome(listener, kind, machine, f"gpu:{gpu}", start)
        return found


def _agent(data: Path, place: Path, machine: str) -> list[str]:
    return agent_command(data, root=place / machine)


def _all_train(fleet: Fleet) -> bool:
    return all(rank.iterations > 2 for ranks in fleet.progress().values() for rank in ranks)


def _raised(listener: Listener) -> list[dict[str, Any]]:
    """The verdicts since the last outcome but those that a machine is well again."""
    return [verdict.as_json() for verdict in listener.verdicts if verdict.level != "ok"]


def _outcome(listener: Listener, kind: str, machine: str = "", device: str = "", start: int = 0) -> dict[str, Any]:
    said = _raised(listener)
    listener.verdicts.clear()
    fault = {"kind": kind, "machine": machine, "device": device, "start": start}
    named = {verdict["machine"] for verdict in said}
    return {"fault": fault, "verdicts": said, "correct": named == ({machine} if start else set())}


if __name__ == "__main__":
    given = json.loads(sys.argv[2])
    series = Series(**{**given, "shape": tuple(given["shape"])})
    print(json.dumps(series.run(Path(sys.argv[1]).resolve())))
