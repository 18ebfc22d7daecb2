"""Verdicts in words: a reading on both sides, in units people use."""

from __future__ import annotations

import math
import re

from store.schema.catalogue import METRICS, Metric

_SCALES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_SHORT = {"bytes": "B", "hertz": "Hz", "watts": "W", "celsius": "°C", "bits per second": "bit/s"}


def _figure(value: float) -> str:
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{min(digits, 6)}f}" if abs(value) < 1e6 else f"{value:.3g}"


def quantity(value: float, metric: Metric | None) -> str:
    """A number as people say it: 1.12 GHz, 35 %, 2.1 GB/s; the bare number where no catalogue knows the unit."""
    if metric is None:
        return _figure(value)
    per = "/s" if metric.kind == "counter" else ""
    if metric.unit == "seconds" and per:
        return f"{max(value, 0):.2f} s/s"
    if metric.unit == "ratio":
        return f"{100 * value:.3g} %"
    if metric.unit in ("0 or 1", "number"):
        return _figure(value)
    short = _SHORT.get(metric.unit, metric.unit)
    for scale, letter in _SCALES:
        if metric.unit in ("bytes", "hertz", "bits per second") and abs(value) >= scale:
            return f"{value / scale:.3g} {letter}{short}{per}"
    return f"{_figure(value)} {short}{per}"


_DEVICES = {"gpu": "GPU", "rdma": "port", "nvswitch": "NVSwitch"}


def subject(machine: str, device: str | None) -> str:
    """A machine, or its device, in words: `m03 GPU 0`, `m03 port mlx5_0/1`."""
    kind, _, name = (device or "").partition(":")
    return f"{machine} {_DEVICES.get(kind, kind)} {name}".rstrip() if device else machine


def plural(count: int, noun: str) -> str:
    """A number of things: `1 rank`, `15 ranks`."""
    return f"{count} {noun}{'s' * (count != 1)}"


def compared_with(message: str, others: int) -> str:
    """The peers as the verdict's message counts them (`comparison`), among its own and the other machines of the task.

    Where the message counts none, the other machines alone.
    """
    counted = re.search(r"\(median of (\d+) peers: ", message)
    if counted is None:
        return plural(others, "other machine")
    return f"{plural(int(counted[1]), 'peer')} among {plural(others + 1, 'machine')}"


def comparison(name: str, key: str, value: float, median: float, peers: int) -> str:
    """One sentence: the value of one machine or device, and the median of its peers."""
    return f"{_stated(name, key, value)} (median of {peers} peers: {quantity(median, METRICS.get(key))})"


def change(name: str, key: str, value: float, before: float) -> str:
    """One sentence: the value of one machine or device, and what it was before."""
    return f"{_stated(name, key, value)} (before: {quantity(before, METRICS.get(key))})"


def _stated(name: str, key: str, value: float) -> str:
    metric = METRICS.get(key)
    phrase = metric.phrase if metric else ""
    if not phrase:
        phrase = f"{metric.help.split(':')[0].split(' (')[0] if metric else key} {{}}"
    return f"{name}: {phrase.format(quantity(value, metric))}"
