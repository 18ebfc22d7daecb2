"""A healthy task's life: checkpoints, evaluations, a phase in which all are slow alike, a restart; in random order."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from cli.agent_process import agent_command
from detector.config import Config
from detector.model.verdict import Verdict
from detector.service.runner import LATE_NS, Runner
from emulator.cluster.fleet import Fleet
from emulator.shared.fabric import Progress
from store.open import open_store
from store.schema.contract import Store

START_S, PHASE_S = 120.0, 15.0
OFTEN = ("--checkpoint-every=23", "--evaluation-every=37")


def live(
    folder: Path, seed: int, shape: tuple[int, int, int, int], nccl: Path | None = None, training: str = "ahead"
) -> list[Verdict]:
    """What the detector says of such a task, notes left out; shape: machines, GPUs of each, tensor, pipeline.

    `nccl` is NVIDIA's library; None: the emulated one.
    """
    chance, folder = random.Random(seed), folder.resolve()
    folder.mkdir(parents=True)
    data, fleet_folder = folder / "readings.db", folder / "fleet"
    agent = lambda name: agent_command(data, root=fleet_folder / name)  # noqa: E731
    fleet = Fleet(fleet_folder, *shape, seed, agent, OFTEN, nccl=nccl, training=training)
    with closing(open_store(str(data), create=True)) as store, fleet:
        said = Listener(Runner(store, Config(), time.time_ns()))
        said.listen(START_S, until=lambda: all(rank.iterations > 2 for rank in _ranks(fleet)))
        said.listen(PHASE_S)
        phases = [lambda: _slow_alike(fleet, chance.uniform(1.2, 1.8), shape[1]), fleet.heal, fleet.restart]
        if chance.random() < 0.5:
            phases = [phases[2], *phases[:2]]
        for phase in phases:
            phase()
            said.listen(chance.uniform(1.0, 1.4) * PHASE_S)
        said.listen(START_S, until=lambda: all(rank.iterations > 2 for rank in _ranks(fleet)))
        assert min(rank.iterations for rank in _ranks(fleet)) > 2  # it went on after all of that
        said.listen(PHASE_S, until=lambda: _watched(store, time.time_ns()) == set(fleet.names))
        assert _watched(store, time.time_ns()) == set(fleet.names)
    return [verdict for verdict in said.verdicts if verdict.level != "note"]


class Listener:
    """Runs a detector along, and keeps what it says."""

    def __init__(self, runner: Runner) -> None:
        self.runner, self.verdicts = runner, list[Verdict]()
        self._stop = threading.Event()

    def listen(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        """Judge once a second, for so long or until that is true."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not until():
            self.verdicts += self.runner.catch_up(time.time_ns() - LATE_NS, self._stop)
            time.sleep(1)


def _ranks(fleet: Fleet) -> list[Progress]:
    return [rank for ranks in fleet.progress().values() for rank in ranks]


def _watched(store: Store, now: int) -> set[str]:
    """The machines with operations within the last five seconds."""
    found = store.read("nccl", now - 5 * 10**9, now, ("machine", "operations_total"))
    return {row["machine"] for row in found.to_pylist() if row["operations_total"]}


def _slow_alike(fleet: Fleet, factor: float, gpus: int) -> None:
    for machine in fleet.names:
        for gpu in range(gpus):
            fleet.inject("slow_gpu", machine, gpu, factor)
