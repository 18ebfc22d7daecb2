"""How well the whole does: five seeds of each fault, health; injections in a bigger task.

PEERWATCH_SEEDS says how many seeds, PEERWATCH_FAULTS which faults, with commas between them.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from emulator.faults import KINDS
from tests.cli.test_demo import TOGETHER, demo

pytestmark = [pytest.mark.bench, pytest.mark.bpf]

SEEDS = int(os.environ.get("PEERWATCH_SEEDS", "5"))
HEALTHY = 2 * SEEDS
FAULTS = tuple(os.environ.get("PEERWATCH_FAULTS", ",".join(KINDS)).split(","))
RUNS = int(os.environ.get("PEERWATCH_RUNS", "3"))
"""Of each injection; 40 take a night."""
INJECTIONS = {
    "Mycroft: NIC shutdown": "nic_down",
    "Mycroft: NIC bandwidth limit": "nic_downgrade",
    "Mycroft: PCIe downgrading": "pcie_downgrade",
    "Mycroft: GPU power limit": "power_cap",
    "Mycroft: background compute": "background_compute",
    "Mycroft: background traffic": "background_traffic",
    "Mycroft: NCCL delay": "nccl_delay",
    "FlagScale: missing enter": "rank_hang",
    "FlagScale: signature mismatch": "wrong_collective",
    "FlagScale: all entered, none moves": "nic_down",
    "FlagScale: late enter": "slow_host",
    "healthy": "none",
}
TASK = ("--machines", "4", "--gpus", "4", "--tensor", "2", "--pipeline", "2", "--healthy", "20")


def test_every_fault_and_health(probes_allowed: None, tmp_path: Path) -> None:
    """All faults are named correctly in all seeds, and no healthy run names anybody."""
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
    """In 16 ranks (tensor 2, pipeline 2, data 4) each injection is located; PEERWATCH_RUNS: how often."""
    wanted = sorted(set(INJECTIONS.values()))
    right: dict[str, list[bool]] = {fault: [] for fault in wanted}
    located: dict[str, list[bool]] = {fault: [] for fault in wanted}
    delays: dict[str, list[float]] = {fault: [] for fault in wanted}
    for seed in range(300, 300 + RUNS):
        for fault in wanted:
            _, said = demo("--fault", fault, "--seed", str(seed), "--folder", str(tmp_path / f"{fault}-{seed}"), *TASK)
            first, true = (said["verdicts"] or [None])[0], said["fault"]
            right[fault].append(said["correct"])
            index = (true["device"] or ":").split(":")[1]
            devices = (true["device"], f"rdma:mlx5_{index}/1")
            located[fault].append(said["correct"] and (first is None or first["device"] in devices))
            delays[fault] += [(first["time"] - true["start"]) / 1e9] if first and true["start"] else []
    print()
    for name, fault in INJECTIONS.items():
        after = f", after {max(delays[fault]):.0f} s at most" if delays[fault] else ""
        print(f"{name:36} {sum(right[fault])} of {RUNS} machine, {sum(located[fault])} of {RUNS} device{after}")
    assert all(all(runs) for runs in right.values()), {fault for fault, runs in right.items() if not all(runs)}
