"""What a verdict looks like to those who read it."""

from __future__ import annotations

from detector.model.text import comparison, quantity
from detector.model.verdict import Verdict
from store.schema.catalogue import METRICS


def test_json_has_exactly_the_promised_keys() -> None:
    """One line of `replay --json` carries what recording.md lists, in that order."""
    verdict = Verdict(17, "t", "m1", None, "peer", "gpu.power_watts", 3.14159, 11, "crit", "m1 draws much", ("more",))
    assert list(verdict.as_json().items()) == [
        ("time", 17),
        ("task", "t"),
        ("machine", "m1"),
        ("device", None),
        ("kind", "peer"),
        ("metric", "gpu.power_watts"),
        ("score", 3.14),
        ("since", 11),
        ("level", "crit"),
        ("message", "m1 draws much"),
    ]


def test_golden_sentences() -> None:
    """Each kind of unit is said as people say it, with both sides."""
    said = [
        comparison("m03 gpu:0", "nccl.host_blocked_seconds_total", 0.021, 0.312, 5),
        comparison("m03 gpu:1", "gpu.sm_clock_hertz", 1.12e9, 1.98e9, 63),
        comparison("m04 gpu:2", "gpu.pcie_receive_bytes_total", 2.1e9, 6.43e9, 7),
        comparison("m05", "host.cpu_pressure_ratio", 0.52, 0.031, 9),
        comparison("m06", "cabinet.fan", 12.5, 48.0, 8),
        comparison("m07 rdma:mlx5_0/1", "rdma.symbol_errors_total", 12.0, 0.0, 4),
    ]
    assert said == [
        "m03 gpu:0 spends 0.02 s of each second waiting for its communicators where its 5 peers spend 0.31 s",
        "m03 gpu:1 runs its multiprocessors at 1.12 GHz where its 63 peers run theirs at 1.98 GHz",
        "m04 gpu:2 reads 2.1 GB/s where its 7 peers read 6.43 GB/s: bytes received over PCIe",
        "m05 reads 52 % where its 9 peers read 3.1 %: share of time some thread waited for a CPU",
        "m06 reads 12.5 where its 8 peers read 48.0: cabinet.fan",
        "m07 rdma:mlx5_0/1 reads 12.0 errors/s where its 4 peers read 0 errors/s: symbol errors on the wire",
    ]


def test_every_metric_can_be_said() -> None:
    """No unit of the catalogue lacks words, be the reading nothing, little, much or unknown."""
    for metric in METRICS.values():
        for value in (0.0, 3e-7, 0.7, 5.2e13, float("nan"), float("-inf")):
            assert quantity(value, metric)
