"""The catalogue: a metric is one row, and everything else about it follows from that row."""

from __future__ import annotations

from collections import Counter

from cli.queries.fleet_status import READINGS
from detector.model.text import comparison
from store.schema.catalogue import LOCAL, METRICS, TABLES


def test_rows_are_sound() -> None:
    """A metric is in a known table, has a tolerance if it is compared, and one place for the value in its phrase."""
    assert {metric.table for metric in METRICS.values()} <= TABLES.keys()
    for metric in METRICS.values():
        assert metric.key == f"{metric.table}.{metric.name}"
        assert metric.help
        assert not metric.phrase or metric.phrase.count("{}") == 1
        if metric.compared and not metric.table.endswith("_zoom"):
            assert metric.abs_tolerance > 0, metric.key
    assert max(Counter(metric.headline for metric in METRICS.values() if metric.headline).values()) == 1


def test_only_compared_metrics_are_local() -> None:
    """A local metric says that a machine is no victim, so peers must be compared by it."""
    assert {key for key in LOCAL if not METRICS[key].compared} == set()
    assert "gpu.sm_clock_hertz" in LOCAL
    assert "nccl.active_ratio" not in LOCAL


def test_a_headline_puts_a_metric_into_the_status() -> None:
    """The status of a machine shows the metrics that have a headline, under that name, in the catalogue's order."""
    assert ("gpu_clock_hertz", "gpu", "sm_clock_hertz") in READINGS
    assert [f"{table}.{name}" for _, table, name in READINGS] == [key for key, m in METRICS.items() if m.headline]


def test_a_phrase_words_a_verdict() -> None:
    """A verdict uses the metric's phrase, else its help text."""
    assert comparison("m7", "gpu.power_watts", 311.0, 640.0, 6) == "m7: power draw 311 W (median of 6 peers: 640 W)"
    said = comparison("m7", "gpu.pcie_width", 8.0, 16.0, 5)
    assert said == "m7: PCIe lanes of the link 8.00 lanes (median of 5 peers: 16.0 lanes)"


def test_fast_tables_are_the_detectors_default() -> None:
    """The detector's default of fast tables comes from the catalogue."""
    from detector.config import Config

    assert Config().fast_tables == tuple(name for name, table in TABLES.items() if table.fast) == ("nccl",)
