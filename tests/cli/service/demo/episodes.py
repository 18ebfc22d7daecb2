"""One fleet that lives through several faults one after another, watched through NCCL alone; judged afterwards."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from cli.agent_process import agent_command
from detector.engine.pipeline import replay
from detector.model.verdict import Verdict
from emulator.cluster.fleet import Fleet
from store.open import open_store
from store.schema.time import SECOND

SETTINGS = '[agent]\nsources = ["probe", "nccl"]\n'
"""No NVML, no sysfs, no host, no CUDA: calls and memory of NCCL."""


@dataclass(frozen=True, slots=True)
class Episode:
    """A fault of some length, and the time without one that comes before it; seconds."""

    fault: str
    amount: float | None
    machine: str
    gpu: int
    healthy: float
    lasts: float
    restarts: bool = False
    """Whether the task is started again afterwards, as people do with one that hangs: new communicators."""


@dataclass(frozen=True, slots=True)
class Onset:
    """When an episode began and ended, Unix ns."""

    episode: Episode
    begin: int
    end: int


def record(fleet: Fleet, episodes: list[Episode]) -> list[Onset]:
    """Let a fleet live through the episodes."""
    onsets = []
    with fleet:
        _settle(fleet)
        for one in episodes:
            time.sleep(one.healthy)
            begin = fleet.inject(one.fault, one.machine, one.gpu, one.amount)
            time.sleep(one.lasts)
            onsets.append(Onset(one, begin, time.time_ns()))
            fleet.heal()
            if one.restarts:
                fleet.restart()
    return onsets


def nccl_fleet(
    folder: Path,
    shape: tuple[int, int, int, int],
    seed: int,
    nccl: Path | None,
    training: str,
    rank_options: Sequence[str] = (),
    late_s: float = 0.0,
) -> Fleet:
    """A fleet with agents that read NCCL alone; shape: machines, GPUs of each, tensor, pipeline.

    `late_s`: seconds by which the agents of all machines but one come later than their ranks.
    """
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    settings = folder / "peerwatch.toml"
    settings.write_text(SETTINGS)
    data, place = folder / "readings.db", folder / "fleet"
    open_store(str(data), create=True).close()

    def agent(name: str) -> list[str]:
        wait = ["sh", "-c", f'sleep {late_s}; exec "$@"', "agent"] if late_s and name != "m01" else []
        return [*wait, *agent_command(data, settings, place / name)]

    return Fleet(place, *shape, seed, agent, rank_options, nccl=nccl, training=training)


def judged(folder: Path) -> list[Verdict]:
    """What the detector says of what was recorded, notes left out."""
    with closing(open_store(str(folder / "readings.db"))) as store:
        return [verdict for verdict in replay(store) if verdict.level != "note"]


def first_alarm(verdicts: list[Verdict], onset: Onset, after_s: float = 20.0) -> Verdict | None:
    """The first alarm of an episode; one may still come in the seconds after its end."""
    end = onset.end + round(after_s * SECOND)
    alarms = (verdict for verdict in verdicts if verdict.level != "ok")
    return next((verdict for verdict in alarms if onset.begin < verdict.time <= end), None)


def _settle(fleet: Fleet) -> None:
    limit = time.monotonic() + 60
    while time.monotonic() < limit:
        if all(rank.iterations > 5 for ranks in fleet.progress().values() for rank in ranks):
            return
        time.sleep(0.5)
    raise AssertionError("the fleet did not start to train")
