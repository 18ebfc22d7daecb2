"""The profile of a window as text and as JSON: functions and ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cli.terminal import console, say
from cli.views.columns import show_table

if TYPE_CHECKING:
    from analysis.profile.patterns import Abnormal, Patterns
    from analysis.profile.samples import Samples
    from detector.stats.arrays import Floats

_ROWS, _NAMES = 24, 6


@dataclass(frozen=True, slots=True)
class Window:
    """Samples of all ranks, and what taking them cost; of files the cost is not known."""

    samples: Samples
    shares: Mapping[str, Mapping[str, Floats]] = field(default_factory=dict)
    """[function][rank]: measured by NCCL's rows, one a reading."""
    cpu_seconds: float = math.nan
    failed: Mapping[str, str] = field(default_factory=dict)
    readers: Mapping[str, str] = field(default_factory=dict)
    late_seconds: float = 0.0
    iteration_before: float = math.nan
    """Seconds."""
    iteration_during: float = math.nan

    def patterns(self) -> Patterns:
        """The patterns of all functions, and those of NCCL where it has them of all ranks."""
        from analysis.profile.patterns import patterns

        found = patterns(self.samples)
        for function, series in self.shares.items():
            found = found.with_series(function, "collective", dict(series))
        return found


def as_json(window: Window) -> dict[str, Any]:
    """The object of `peerwatch profile --json`; β, μ, σ and Δ are shares from 0 to 1."""
    from analysis.profile.patterns import abnormal, patterns

    samples = window.samples
    kinds = patterns(samples.by_class())
    classes = {
        rank: {kind: values for kind, values in zip(kinds.classes, found, strict=True) if values[0]}
        for rank, found in zip(kinds.ranks, kinds.values.round(4).tolist(), strict=True)
    }
    cost = {
        "cpu_seconds": _known(window.cpu_seconds),
        "iteration_seconds_before": _known(window.iteration_before),
        "iteration_seconds_during": _known(window.iteration_during),
    }
    return {
        "seconds": samples.seconds,
        "samples": {rank: len(seen) for rank, seen in zip(samples.ranks, samples.seen, strict=True)},
        "abnormal": [_listed(one) for one in abnormal(window.patterns())],
        "classes": classes,
        "readers": dict(window.readers),
        "failed": dict(window.failed),
        "late_seconds": window.late_seconds,
        "cost": cost,
    }


def _listed(one: Abnormal) -> dict[str, Any]:
    shares = {"beta": one.beta, "mu": one.mu, "sigma": one.sigma, "delta": one.delta, "usual_beta": one.usual}
    names = {"function": one.function, "class": one.kind, "rank": one.rank}
    return names | {name: round(value, 4) for name, value in shares.items()}


def show(window: Window) -> None:
    """Print it."""
    from analysis.profile.patterns import LEAST_RANKS, abnormal

    samples = window.samples
    total = sum(len(seen) for seen in samples.seen)
    many = f"{len(samples.ranks)} process{'es' * (len(samples.ranks) != 1)}"
    say(f"{total:,} samples of {many} in one window of {samples.seconds:g} s")
    _show_cost(window)
    for name, why in [*window.failed.items()][:_NAMES]:
        say(f"{name} is left out: {why}", err=True)
    if len(window.failed) > _NAMES:
        say(f"… and {len(window.failed) - _NAMES} more are left out (--json has all)", err=True)
    native = [name for name, reader in window.readers.items() if reader.startswith("perf")]
    if native:
        say(f"By perf, native functions on a CPU only: {', '.join(native[:_NAMES])}: {window.readers[native[0]]}")
    if len(samples.ranks) < LEAST_RANKS:
        say(f"Ranks are not compared with each other: that takes {LEAST_RANKS}.")
    found = abnormal(window.patterns())
    if found:
        _show_table(found)
    else:
        say("No function behaves otherwise in one rank than in the others.")


def _show_cost(window: Window) -> None:
    if not math.isnan(window.cpu_seconds):
        share = window.cpu_seconds / window.samples.seconds / max(len(window.samples.ranks), 1)
        say(f"sampling took {share:.1%} of a core a process; no process was stopped for it")
    before, during = window.iteration_before, window.iteration_during
    if before > 0 and during > 0:
        change = during / before - 1
        say(f"iterations: {before:.3g} s before the window, {during:.3g} s in it ({change:+.1%})")
    if window.late_seconds >= 1:
        say(f"One sampler began {window.late_seconds:.1f} s late, and has the rest of the window.")


def _show_table(found: list[Abnormal]) -> None:
    rows = []
    for one in found[:_ROWS]:
        shares = f"{one.beta:.1%}", f"{one.usual:.1%}", f"{one.delta:.0%}"
        rows.append((one.function, one.rank, *shares, one.kind, f"{one.mu:.2f}", f"{one.sigma:.2f}"))
    heads = ("function", "rank", "share", "usually", "peers that differ", "class", "μ", "σ")
    show_table(console(), heads, rows, heads[1:], ("rank", "class"))
    if len(found) > _ROWS:
        say(f"… and {len(found) - _ROWS} more (--json has all)")


def _known(value: float) -> float | None:
    return round(value, 4) if math.isfinite(value) else None
