"""How well the whole does: five seeds of each fault, ten healthy runs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from emulator.faults import KINDS
from tests.cli.test_demo import TOGETHER, demo

pytestmark = [pytest.mark.bench, pytest.mark.bpf]

SEEDS, HEALTHY = 5, 10


def test_every_fault_and_health(probes_allowed: None, tmp_path: Path) -> None:
    """All faults are named correctly in all seeds, and no healthy run names anybody."""
    runs = [(fault, 100 + seed) for fault in KINDS for seed in range(HEALTHY if fault == "none" else SEEDS)]

    def one(run: tuple[str, int]) -> tuple[str, bool, float | None]:
        fault, seed = run
        code, said = demo("--fault", fault, "--seed", str(seed), "--folder", str(tmp_path / f"{fault}-{seed}"))
        first = said["verdicts"][0]["time"] if said["verdicts"] else None
        delay = (first - said["fault"]["start"]) / 1e9 if first and said["fault"]["start"] else None
        return fault, code == 0, delay

    with ThreadPoolExecutor(TOGETHER) as executor:
        results = list(executor.map(one, runs))
    print()
    for fault in KINDS:
        mine = [(right, delay) for kind, right, delay in results if kind == fault]
        delays = sorted(delay for _, delay in mine if delay is not None)
        after = f", named after {delays[len(delays) // 2]:.0f} s (median; at most {delays[-1]:.0f} s)" if delays else ""
        print(f"{fault:17} {sum(right for right, _ in mine)} of {len(mine)} right{after}")
    assert all(right for _, right, _ in results), [kind for kind, right, _ in results if not right]
