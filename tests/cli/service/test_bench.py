"""How well the whole does: five seeds of each fault, health; injections in a bigger task.

PEERWATCH_SEEDS says how many seeds, PEERWATCH_FAULTS which faults, with commas between them.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from emulator.shared.faults import KINDS
from tests.cli.service.injections import INJECTIONS, TASK, named_device
from tests.cli.service.injections import KINDS as INJECTED
from tests.cli.service.life import live
from tests.cli.service.test_demo import TOGETHER, demo

pytestmark = [pytest.mark.bench, pytest.mark.bpf]

SEEDS = int(os.environ.get("PEERWATCH_SEEDS", "5"))
HEALTHY = 2 * SEEDS
FAULTS = tuple(os.environ.get("PEERWATCH_FAULTS", ",".join(KINDS)).split(","))
RUNS = int(os.environ.get("PEERWATCH_RUNS", "3"))
"""Of each injection, and of healthy lives; 40 take some two hours on two cores."""


def test_every_fault_and_health(probes_allowed: None, tmp_path: Path) -> None:
    """Verdicts name all faults correctly in all seeds, and no healthy run has a verdict."""
    runs = [(fault, 100 + seed) for fault in FAULTS for seed in range(HEALTHY if fault == "none" else SEEDS)]

    def one(run: tuple[str, int]) -> tuple[str, bool, float | None]:
        fault, seed = run
        code, said = demo("--fault", fault, "--seed", str(seed), "--folder", str(tmp_path / f"{fault}-{seed}"))
        first = said["verdicts"][0]["time"] if said["verdicts"] else None
        delay = (first - said["fault"]["start"]) / 1e9 if first and said["fault"]["start"] else None
        return fault, code == 0, delay

    with ThreadPoolExecutor(TOGETHER) as executor:
        results = list(executor.map(one, runs))
    print()
    for fault in FAULTS:
        mine = [(right, delay) for kind, right, delay in results if kind == fault]
        delays = sorted(delay for _, delay in mine if delay is not None)
        after = f", named after {delays[len(delays) // 2]:.0f} s (median; at most {delays[-1]:.0f} s)" if delays else ""
        print(f"{fault:17} {sum(right for right, _ in mine)} of {len(mine)} right{after}")
    assert all(right for _, right, _ in results), [kind for kind, right, _ in results if not right]


def test_mycroft_and_flagscale_injections(probes_allowed: None, tmp_path: Path) -> None:
    """The detector locates each injection in 95 % of its runs on 16 ranks (tensor 2, pipeline 2, data 4)."""
    runs = [(fault, seed) for seed in range(300, 300 + RUNS) for fault in INJECTED]

    def one(run: tuple[str, int]) -> tuple[str, bool, bool, float]:
        fault, seed = run
        _, said = demo("--fault", fault, "--seed", str(seed), "--folder", str(tmp_path / f"{fault}-{seed}"), *TASK)
        if not said["verdicts"]:
            return fault, False, False, 0.0
        first = said["verdicts"][0]["time"]
        delay = (first - (said["fault"]["start"] or first)) / 1e9
        return fault, said["correct"], said["correct"] and named_device(said), delay

    with ThreadPoolExecutor(TOGETHER) as executor:
        results = list(executor.map(one, runs))
    print()
    for name, fault in INJECTIONS.items():
        mine = [(right, locate_store, delay) for kind, right, locate_store, delay in results if kind == fault]
        machine, device = sum(right for right, _, _ in mine), sum(locate_store for _, locate_store, _ in mine)
        after = sorted(delay for right, _, delay in mine if right)
        print(f"{name:36} machine {machine} of {RUNS}, device {device} of {RUNS}", end="")
        print(f", after {after[len(after) // 2]:.0f} s (median; at most {after[-1]:.0f} s)" if after else "")
        assert machine >= 0.95 * RUNS, fault


def test_healthy_lives_of_16_ranks(probes_allowed: None, tmp_path: Path) -> None:
    """Checkpoints, evaluations, a phase in which all are slow alike and a restart give no verdict."""
    shape = (4, 4, 2, 2)
    with ThreadPoolExecutor(TOGETHER) as executor:
        said = list(executor.map(lambda seed: live(tmp_path / f"{seed}", seed, shape), range(500, 500 + RUNS)))
    print(f"\n{sum(not verdicts for verdicts in said)} of {RUNS} healthy lives without a verdict")
    assert not any(said), [verdict.message for verdicts in said for verdict in verdicts]
