"""Draws the harmless things of a recording: which, where and when; a site has a mix of its own."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np

from emulator.simulation.fleet_model import START, Fleet, Mask, name_of
from emulator.simulation.harmless import HARMLESS
from emulator.simulation.scene import Kind, Scene
from store.schema.time import SECOND

AMOUNTS = {"none": 0.0, "some": 1.0, "many": 4.0}
"""How often, as a multiple of the rates in the table."""
RACK = 8
"""Machines of a rack."""


def disturb(f: Fleet, amount: str, kinds: Collection[str] = tuple(HARMLESS)) -> list[dict[str, Any]]:
    """Let harmless things happen and list them as labels.json does: machine, device, kind, start, end.

    `machine` is None where the whole task is meant. Draws are apart from the fleet's own, so that a seed gives the
    same fleet and faults with and without them.
    """
    found = []
    for name in kinds if AMOUNTS[amount] else ():
        rng = np.random.default_rng([f.seed, f.machines, zlib.crc32(f"harmless {name}".encode())])
        kind = HARMLESS[name]
        for _ in range(_times(f, kind, AMOUNTS[amount], rng)):
            on = _when(f, kind, rng)
            gpu = int(rng.integers(f.gpus)) if kind.scope in ("device", "rail") else None
            for who in _where(f, kind, rng):
                for act in kind.acts:
                    act(Scene(f, rng, on, who, gpu))
                found.append(_label(f, name, who, gpu, on))
    return sorted(found, key=lambda label: (label["start"], label["kind"], label["machine"] or ""))


def _times(f: Fleet, kind: Kind, amount: float, rng: np.random.Generator) -> int:
    """How often; the site's own mix makes a kind rarer or more frequent by a factor of three."""
    often = kind.rate * amount * float(rng.lognormal(0.0, 1.0))
    if not kind.most_s:
        return int(rng.random() < min(often, 0.9))
    hours = f.seconds[-1] / 3600
    return int(rng.poisson(often * hours * (f.machines if kind.scope in ("device", "machine") else 1)))


def _when(f: Fleet, kind: Kind, rng: np.random.Generator) -> Mask:
    if not kind.most_s:
        return np.ones(len(f.seconds), bool)
    begin, last = rng.uniform(0, f.seconds[-1]), rng.uniform(kind.least_s, kind.most_s)
    on: Mask = (f.seconds >= begin) & (f.seconds < begin + max(last, f.step_s))
    on[-1] |= not on.any()
    return on


def _where(f: Fleet, kind: Kind, rng: np.random.Generator) -> Iterator[int | None]:
    who = int(rng.integers(f.machines))
    if kind.scope in ("task", "rail"):
        yield None
    elif kind.scope == "rack":
        first = who // RACK * RACK
        yield from range(first, min(first + RACK, f.machines))
    else:
        yield who


def _label(f: Fleet, name: str, who: int | None, gpu: int | None, on: Mask) -> dict[str, Any]:
    start, end = (START + int(s * SECOND) for s in (f.seconds[on][0], f.seconds[on][-1] + f.step_s))
    machine = None if who is None else name_of(who)
    device = None if gpu is None else f"gpu:{gpu}"
    return {"machine": machine, "device": device, "kind": name, "start": start, "end": end}
