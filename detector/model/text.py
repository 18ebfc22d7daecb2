"""Verdicts in words: a reading on both sides, in units people use."""

from __future__ import annotations

import math

from store.schema.catalogue import METRICS, Metric

_SCALES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_SHORT = {"bytes": "B", "hertz": "Hz", "watts": "W", "celsius": "°C", "bits per second": "bit/s"}
_SAYINGS = {
    "nccl.host_blocked_seconds_total": (
        "spends {} s of each second waiting for its communicators",
        "{} s",
        "spend",
    ),
    "cuda.synchronize_seconds_total": ("spends {} s of each second waiting for its GPU", "{} s", "spend"),
    "cuda.gc_seconds_total": ("spends {} s of each second collecting garbage", "{} s", "spend"),
    "process.cpu_wait_seconds_total": (
        "waits {} s of each second for a CPU, its threads added up",
        "{} s",
        "wait",
    ),
    "process.disk_wait_seconds_total": (
        "waits {} s of each second for disks, its threads added up",
        "{} s",
        "wait",
    ),
    "nccl.send_pending_ratio": (
        "has a chunk waiting on the network {} of the time",
        "{}",
        "have one",
    ),
    "nccl.active_ratio": (
        "has operations at work {} of the time",
        "{}",
        "have them",
    ),
    "gpu.sm_clock_hertz": ("runs its multiprocessors at {}", "{}", "run theirs at"),
    "gpu.power_watts": ("draws {}", "{}", "draw"),
    "gpu.temperature_celsius": ("is at {}", "{}", "are at"),
}


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
    if metric.unit == "ratio":
        return f"{100 * value:.3g} %"
    if metric.unit in ("0 or 1", "number"):
        return _figure(value)
    short = _SHORT.get(metric.unit, metric.unit)
    for scale, letter in _SCALES:
        if metric.unit in ("bytes", "hertz", "bits per second") and abs(value) >= scale:
            return f"{value / scale:.3g} {letter}{short}{per}"
    return f"{_figure(value)} {short}{per}"


_DEVICES = {"gpu": "GPU", "rdma": "port"}


def subject(machine: str, device: str | None) -> str:
    """A machine, or its device, in words: `m03 GPU 0`, `m03 port mlx5_0/1`."""
    kind, _, name = (device or "").partition(":")
    return f"{machine} {_DEVICES.get(kind, kind)} {name}".rstrip() if device else machine


def plural(count: int, noun: str) -> str:
    """A number of things: `1 rank`, `15 ranks`."""
    return f"{count} {noun}{'s' * (count != 1)}"


def comparison(who: str, key: str, value: float, usual: float, peers: int) -> str:
    """One sentence: what one reads, and what its peers do."""
    metric = METRICS.get(key)
    if key in _SAYINGS:
        mine, theirs, verb = _SAYINGS[key]
        said = (
            (f"{max(v, 0):.2f}" for v in (value, usual))
            if " s " in mine
            else (quantity(v, metric) for v in (value, usual))
        )
        first, second = said
        return f"{who} {mine.format(first)} where its {peers} peers {verb} {theirs.format(second)}"
    what = metric.help.split(":")[0].split(" (")[0] if metric else key
    sides = quantity(value, metric), quantity(usual, metric)
    return f"{who} reads {sides[0]} where its {peers} peers read {sides[1]}: {what}"
