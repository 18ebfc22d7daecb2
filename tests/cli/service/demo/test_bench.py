"""How well the whole does: every fault, health, injections in a bigger task, healthy lives.

Ranks run on NVIDIA's libnccl where it is here, one demo at a time, and enqueue ahead. The environment chooses:
PEERWATCH_NCCL a version or `emulated`; PEERWATCH_TRAINING a word of `demo --training`; PEERWATCH_SEEDS how many seeds,
PEERWATCH_FIRST_SEED from which on; PEERWATCH_FAULTS which faults, with commas between them; PEERWATCH_RUNS how many
runs of each injection and life, and PEERWATCH_AT_ONCE how many of them at a time.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from emulator.libraries.nvidia import NOT_PLAYED
from emulator.libraries.wheel import DEFAULT, find
from emulator.shared.faults import KINDS
from emulator.shared.trainings import lacks
from tests.cli.service.demo.episodes import Episode, first_alarm, judged, nccl_fleet, record
from tests.cli.service.demo.injections import INJECTIONS, TASK, harms_nothing, named_device
from tests.cli.service.demo.injections import KINDS as INJECTED
from tests.cli.service.demo.life import live
from tests.cli.service.demo.test_demo import TOGETHER, demo

pytestmark = [pytest.mark.bench, pytest.mark.bpf]

NCCL = os.environ.get("PEERWATCH_NCCL") or (DEFAULT if find() else "emulated")
TRAINING = os.environ.get("PEERWATCH_TRAINING", "ahead")
STAGES = ("--pipeline", "2") if lacks(TRAINING, 1, 2) else ()
SEEDS = int(os.environ.get("PEERWATCH_SEEDS", "5"))
FIRST_SEED = int(os.environ.get("PEERWATCH_FIRST_SEED", "100"))
HEALTHY = 2 * SEEDS
FAULTS = tuple(os.environ.get("PEERWATCH_FAULTS", ",".join(KINDS)).split(","))
RUNS = int(os.environ.get("PEERWATCH_RUNS", "3"))
"""Of each injection, and of healthy lives; 40 take some two hours on two cores."""
AT_ONCE = int(os.environ.get("PEERWATCH_AT_ONCE", TOGETHER if NCCL == "emulated" else 1))


@dataclass(frozen=True, slots=True)
class Trial:
    """One demo."""

    fault: str
    said: dict[str, Any]
    load: float
    """Load average of the computer at its end."""
    harmless: bool = False
    """Whether a fault of the traffic lengthened no iteration."""

    @property
    def alarms(self) -> list[dict[str, Any]]:
        """Verdicts other than notes."""
        return [verdict for verdict in self.said["verdicts"] if verdict["level"] in ("warn", "crit")]

    @property
    def wrong(self) -> list[str]:
        """What verdicts name other than the machine at fault."""
        return [str(one["machine"]) for one in self.alarms if one["machine"] != self.said["fault"]["machine"]]

    @property
    def named(self) -> bool:
        """Whether the machine at fault was named, and first; in a run without harm: nothing was."""
        return not self.alarms if self.harmless else bool(self.said["correct"])

    @property
    def device(self) -> bool:
        """Whether the first alarm names the GPU at fault, or the port beside it."""
        return self.named and bool(self.alarms) and named_device({**self.said, "verdicts": self.alarms})

    @property
    def delay(self) -> float | None:
        """Seconds from the onset to the first alarm."""
        start = self.said["fault"]["start"]
        return (self.alarms[0]["time"] - start) / 1e9 if start and self.alarms else None


def trials(runs: Iterable[tuple[str, int]], folder: Path, *options: str) -> list[Trial]:
    """A demo for each fault and seed."""

    def one(run: tuple[str, int]) -> Trial:
        fault, seed = run
        place = str(folder / f"{fault}-{seed}")
        library = "emulated" if fault in NOT_PLAYED else NCCL
        words = ("--nccl", library, "--training", TRAINING, "--seed", str(seed), "--folder", place, *options)
        try:
            said = demo("--fault", fault, *words)[1]
        except json.JSONDecodeError:  # the fleet did not start, which stderr says
            said = {"fault": {"machine": None, "device": None, "start": None}, "verdicts": [], "correct": False}
        start = said["fault"]["start"]
        harmless = bool(start) and fault == "background_traffic" and harms_nothing(Path(place) / "readings.db", start)
        trial = Trial(fault, said, os.getloadavg()[0], harmless)
        print(_row(f"{fault} {seed}", [trial]), flush=True)
        return trial

    with ThreadPoolExecutor(AT_ONCE) as executor:
        return list(executor.map(one, runs))


def table(title: str, names: Iterable[str], of: Callable[[str], list[Trial]]) -> None:
    """Print a row for each name."""
    except_for = f" ({', '.join(NOT_PLAYED)} on the emulated one)" if NCCL != "emulated" else ""
    print(f"\nlibnccl {NCCL}{except_for}, training {TRAINING}\n")
    print(f"| {title} | Named | Device | Seconds | Others named | Load |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name in names:
        print(_row(name, of(name)))


def _row(name: str, mine: list[Trial]) -> str:
    named, device = sum(trial.named for trial in mine), sum(trial.device for trial in mine)
    delays = [trial.delay for trial in mine if trial.named and trial.delay is not None]
    seconds = f"{median(delays):.0f}" + (f", at most {max(delays):.0f}" if len(delays) > 1 else "") if delays else "–"
    wrong, load = sum(len(trial.wrong) for trial in mine), [trial.load for trial in mine]
    harmful = sum(not trial.harmless for trial in mine)
    on = f"{device} of {harmful}" if mine[0].said["fault"]["start"] else "–"
    return f"| {name} | {named} of {len(mine)} | {on} | {seconds} | {wrong} | {min(load):.0f} to {max(load):.0f} |"


def test_every_fault_and_health(probes_allowed: None, tmp_path: Path) -> None:
    """Verdicts name all faults correctly in all seeds, and no healthy run has a verdict."""
    runs = [(fault, FIRST_SEED + seed) for fault in FAULTS for seed in range(HEALTHY if fault == "none" else SEEDS)]
    found = trials(runs, tmp_path, *STAGES)
    table("Fault", FAULTS, lambda fault: [trial for trial in found if trial.fault == fault])
    assert all(trial.named for trial in found), [trial.fault for trial in found if not trial.named]


def test_mycroft_and_flagscale_injections(probes_allowed: None, tmp_path: Path) -> None:
    """The detector locates 95 % of the injections on 16 ranks (tensor 2, pipeline 2, data 4), if they harm."""
    wanted = [fault for fault in INJECTED if fault in FAULTS]
    seeds = range(FIRST_SEED + 200, FIRST_SEED + 200 + RUNS)
    found = trials([(fault, seed) for seed in seeds for fault in wanted], tmp_path, *TASK)
    of = {fault: [trial for trial in found if trial.fault == fault] for fault in wanted}
    names = [name for name, fault in INJECTIONS.items() if fault in wanted]
    table("Injection", names, lambda name: of[INJECTIONS[name]])
    assert sum(trial.named for trial in found) >= 0.95 * len(found)


EPISODES = (
    Episode("pcie_downgrade", None, "m02", 1, 45, 35),
    Episode("nic_downgrade", None, "m01", 0, 25, 35),
    Episode("power_cap", None, "m03", 1, 25, 35),
    Episode("nic_down", None, "m00", 1, 25, 25),
    Episode("background_compute", None, "m02", 0, 30, 35),
    Episode("background_traffic", None, "m01", 1, 25, 35),
    Episode("late_enter", None, "m00", 0, 25, 35),
    Episode("nccl_delay", None, "m03", 0, 45, 40),
    Episode("slow_gpu", 1.1, "m01", 1, 120, 75),
)
"""Mycroft's seven injections, a host that comes late to reductions, and a GPU that is 10 % slower."""


def nccl_alone(folder: Path, shape: tuple[int, int, int, int], seed: int, episodes: Sequence[Episode]) -> list[float]:
    """Let agents without NVML and sysfs watch these episodes; seconds until each was named, infinity: not first."""
    nccl = None if NCCL == "emulated" else find(NCCL)
    onsets = record(nccl_fleet(folder, shape, seed, nccl, TRAINING), list(episodes))
    verdicts, seconds = judged(folder), list[float]()
    print(f"\nlibnccl {NCCL}, training {TRAINING}, load {os.getloadavg()[2]:.0f}")
    for onset in onsets:
        true, first = onset.episode, first_alarm(verdicts, onset)
        after = (first.time - onset.begin) / 1e9 if first else float("inf")
        where = f"{first.machine} {first.device}, {after:.0f} s" if first else "not named"
        print(f"{true.fault:18} {true.amount or '':4} on {true.machine} gpu:{true.gpu}: {where}")
        seconds.append(after if first and first.machine == true.machine else float("inf"))
    return seconds


def test_injections_from_nccl_alone(probes_allowed: None, tmp_path: Path) -> None:
    """Agents without NVML and sysfs locate each injection: eight ranks (tensor 2), one fault after another."""
    assert max(nccl_alone(tmp_path, (4, 2, 2, 1), 7, EPISODES)) < float("inf")


@pytest.mark.parametrize("shape", [(6, 1, 1, 1), (4, 2, 2, 1)])
def test_a_gpu_a_tenth_slower_from_nccl_alone(
    shape: tuple[int, int, int, int], probes_allowed: None, tmp_path: Path
) -> None:
    """A GPU 10 % slower is named within 60 s by NCCL's memory alone, on three machines in turn."""
    turns = (("m01", 0, 120), ("m03", shape[1] - 1, 70), ("m02", 0, 70))
    episodes = [Episode("slow_gpu", 1.1, machine, gpu, healthy, 90) for machine, gpu, healthy in turns]
    assert max(nccl_alone(tmp_path, shape, 41, episodes)) <= 60


def test_healthy_lives_of_16_ranks(probes_allowed: None, tmp_path: Path) -> None:
    """Checkpoints, evaluations, a phase in which all are slow alike and a restart give no verdict."""
    shape = (4, 4, 2, 2)
    nccl = None if NCCL == "emulated" else find(NCCL)
    seeds = range(FIRST_SEED + 400, FIRST_SEED + 400 + RUNS)
    with ThreadPoolExecutor(AT_ONCE) as executor:
        said = list(executor.map(lambda seed: live(tmp_path / f"{seed}", seed, shape, nccl, TRAINING), seeds))
    print(f"\nlibnccl {NCCL}, training {TRAINING}", end=": ")
    print(f"{sum(not verdicts for verdicts in said)} of {RUNS} healthy lives without a verdict")
    assert not any(said), [verdict.message for verdicts in said for verdict in verdicts]
