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
        "m03 gpu:0: 0.02 s/s waiting for its communicators (median of 5 peers: 0.31 s/s)",
        "m03 gpu:1: multiprocessor clock 1.12 GHz (median of 63 peers: 1.98 GHz)",
        "m04 gpu:2: bytes received over PCIe 2.1 GB/s (median of 7 peers: 6.43 GB/s)",
        "m05: share of time some thread waited for a CPU 52 % (median of 9 peers: 3.1 %)",
        "m06: cabinet.fan 12.5 (median of 8 peers: 48.0)",
        "m07 rdma:mlx5_0/1: symbol errors on the wire 12.0 errors/s (median of 4 peers: 0 errors/s)",
    ]


def test_every_metric_can_be_said() -> None:
    """No unit of the catalogue lacks words, be the reading nothing, little, much or unknown."""
    for metric in METRICS.values():
        for value in (0.0, 3e-7, 0.7, 5.2e13, float("nan"), float("-inf")):
            assert quantity(value, metric)
