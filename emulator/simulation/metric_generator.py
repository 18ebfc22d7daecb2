"""From a pretend fleet to tables, piece by piece in time: healthy levels, what devices have of their own, and noise.

Devices differ by offsets that drift; noise has heavy tails; racks breathe with their air; counters, clocks and lost
rows are those of real machines.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from emulator.simulation.fleet_model import START, Array, Columns, Fleet, Place, name_of
from emulator.simulation.nominal_levels import ENDS, LEVELS, READINGS, WORK
from store.schema.time import SECOND

_WANDER_S = 120.0  # knots between which offsets drift along straight lines
_SLOTS = (0.7, 0.3, 0.0)  # of a rank's time for its data-parallel communicator, that of all, and its pipeline's
_RACK = 8  # machines that share their air
_SKEW, _JITTER_S = 0.4, 0.05
"""Share of a step of up to a second by which a clock may be off, and seconds by which a reading may."""


@dataclass(slots=True)
class Meter:
    """One table of a fleet, read from the first step to the last; remembers where its counters stand."""

    fleet: Fleet
    table: str
    counted: dict[str, Array] = field(default_factory=dict)

    def read(self, begin: int, end: int) -> Columns:
        """Rows of the steps begin <= step < end, in order of time."""
        f = self.fleet
        shape = (end - begin, f.machines, 1 if self.table == "host" else f.gpus)
        columns: Columns = {}
        for name, level, offset, noise in READINGS[self.table]:
            rate = _reading(f, f"{self.table}.{name}", (level, offset, noise), begin, shape)
            columns[name] = self._count(name, rate, begin) if name.endswith("_total") else rate
        if self.table == "nccl":
            return _merged([self._slot(columns, begin, shape, slot) for slot in range(3 if f.stages > 1 else 2)])
        return _rows(f, self.table, columns, begin)

    def _slot(self, columns: Columns, begin: int, shape: tuple[int, ...], slot: int) -> Columns:
        """A process spends its time at one communicator after the other: shares add up over its slots."""
        mine = {name: values * _SLOTS[slot] for name, values in columns.items()}
        return _rows(self.fleet, "nccl", mine | _communicators(self.fleet, begin, shape, slot), begin)

    def _count(self, name: str, rate: Array, begin: int) -> Array:
        """A counter that grows at this rate; those of processes restart with them."""
        total = np.cumsum(rate, axis=0, dtype=np.float64) * self.fleet.step_s
        total += self.counted.get(name, 0.0)
        if self.table in ("nccl", "cuda"):
            for on in self.fleet.restarts:
                last = int(np.flatnonzero(on)[-1]) - begin
                if 0 <= last < len(total):
                    total[last + 1 :] -= total[last].copy()
        self.counted[name] = total[-1].copy()
        return total


def _dice(f: Fleet, key: str, *more: int) -> np.random.Generator:
    """A generator that depends on the seed and what it is for, and on nothing that was drawn before."""
    return np.random.default_rng([f.seed, zlib.crc32(key.encode()), *more])


def _reading(f: Fleet, key: str, form: tuple[float, float, float], begin: int, shape: tuple[int, ...]) -> Array:
    level, offset, noise = form
    scale, end = abs(level) or 1.0, begin + shape[0]
    out: Array = _tailed(_dice(f, key, begin), shape) * np.float32(noise * scale)
    out += _own(f, key, offset * scale, begin, shape) + np.float32(level) * _of_stage(f, LEVELS, key)
    if key in WORK:
        # Samples cut iterations at different phases, hence the ripple.
        ripple = 1 + np.float32(0.06 / max(1.0, f.step_s) ** 0.5) * _tailed(_dice(f, key, begin, 1), shape)
        work = f.pace()[begin:end, None] * f.load[begin:end][:, f.stage] * _of_stage(f, ENDS, key)[:, 0]
        out += np.float32(WORK[key]) * work[:, :, None].astype(np.float32) * ripple
    if key.endswith("temperature_celsius"):
        out += _air(f, begin, end)[:, :, None] + np.float32(6) * (f.pace()[begin:end, None, None] - 1).astype(
            np.float32
        )
    if key in ("nccl.host_blocked_seconds_total", "nccl.active_ratio"):
        out += f.waits(begin, end, key != "nccl.active_ratio")
    if key == "cuda.synchronize_seconds_total":
        # The thread waits for its GPU all the time, computing or not, unless it comes late itself.
        out += np.float32(0.88) * ((f.alive > 0) | f.stuck)[begin:end, None, None]
    for bend in f.bends.get(key, ()):
        bend.apply(out, begin)
    np.clip(out, 0.0, 1.0 if key.endswith("_ratio") else np.inf, out=out)
    for absent, machine in f.absent:
        if absent == key:
            out[:, machine] = np.nan
    return out


def _tailed(dice: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Noise of unit size with heavy tails: mostly normal, one in fifty values four times as wide."""
    noise = dice.standard_normal(shape, dtype=np.float32)
    noise[dice.random(shape, dtype=np.float32) < 0.02] *= 4
    return noise


def _own(f: Fleet, key: str, size: float, begin: int, shape: tuple[int, ...]) -> Array:
    """What a device has of its own: an offset, now and then a large one, that wanders by a third an hour."""
    dice = _dice(f, f"own {key}")
    knots = np.arange(0, f.seconds[-1] + 2 * _WANDER_S, _WANDER_S)
    offset = dice.standard_t(4, shape[1:])
    steps = dice.normal(0, 0.33 * (_WANDER_S / 3600) ** 0.5, (len(knots), *shape[1:]))
    path = offset + np.cumsum(steps, axis=0)
    at = f.seconds[begin : begin + shape[0]] / _WANDER_S
    low = at.astype(np.int64)
    part = (at - low)[:, None, None]
    own: Array = (size * (path[low] * (1 - part) + path[low + 1] * part)).astype(np.float32)
    return own


def _of_stage(f: Fleet, ends: Mapping[str, tuple[float, float]], key: str) -> Array:
    """[machine, 1]: the factor of each machine's stage."""
    last = f.load.shape[1] - 1
    first_is, last_is = ends.get(key, (1.0, 1.0)) if last else (1.0, 1.0)
    return np.where(f.stage == 0, first_is, np.where(f.stage == last, last_is, 1.0))[:, None].astype(np.float32)


def _air(f: Fleet, begin: int, end: int) -> Array:
    """[step, machine]: degrees by the hour of the day, and by the coolers of each rack."""
    dice = _dice(f, "air")
    racks = np.arange(f.machines) // _RACK
    hour, phase = dice.uniform(0, 24), dice.uniform(0, 2 * np.pi, racks[-1] + 1)
    cycle = dice.uniform(900, 2400, racks[-1] + 1)
    seconds = f.seconds[begin:end, None]
    day = 4 * np.sin(2 * np.pi * (seconds / 86400 + hour / 24))
    air: Array = (day + 1.2 * np.sin(2 * np.pi * seconds / cycle[racks] + phase[racks])).astype(np.float32)
    return air


def _communicators(f: Fleet, begin: int, shape: tuple[int, ...], slot: int) -> Columns:
    """Slot 0 is the data-parallel communicator of a stage and GPU number, slot 1 that of all ranks, slot 2 a pipeline.

    A rank in a collective of the first has not entered the second; one with a complete group waits in the second.
    """
    steps = slice(begin, begin + shape[0])
    stuck = f.stuck[steps]
    done = _operations(f, (3.1, 0.5, 6.2)[slot])
    still = np.maximum.accumulate(np.where(np.diff(done, prepend=-1.0) != 0, f.seconds, 0.0))
    held = np.full(shape, not f.hung)
    for place, _ in f.hung:
        mates = np.flatnonzero(f.stage == f.stage[place.who])
        held[np.ix_(np.flatnonzero(stuck), mates, np.array([place.gpu]))] = True
    waits = stuck[:, None, None] & (held, ~held, np.zeros_like(held))[slot]
    operations = done[steps, None, None] + waits
    pending = waits.astype(np.float64)
    operation = np.full(shape, "AllReduce:bfloat16:4194304", dtype="<U26")
    if slot == 2:
        operation[:] = np.where(f.stage < f.stages - 1, "Send:bfloat16:1048576", "Recv:bfloat16:1048576")[:, None]
    for place, how in f.hung:
        cell = Place(place.on & f.stuck, place.who, place.gpu).cell(begin, shape)
        if cell is None or slot:
            continue
        if how == "behind":
            operations[cell] -= 1
            pending[cell] = 0.0
        else:
            operation[cell] = "AllGather:bfloat16:4194304"
    return {
        **_identity(f, begin, shape, slot),
        "operations_total": operations.astype(np.int64),
        "operation": operation,
        "bytes_total": (operations * 8388608).astype(np.int64),
        "pending": pending,
        "idle_seconds": np.broadcast_to((f.seconds - still)[steps, None, None], shape),
    }


def _operations(f: Fleet, rate: float) -> Array:
    """[step]: operations since the processes began."""
    done = np.floor(np.cumsum(f.pace()) * f.step_s * rate)
    for on in f.restarts:
        after = int(np.flatnonzero(on)[-1])
        done[after:] -= done[after]
    return done


def _identity(f: Fleet, begin: int, shape: tuple[int, ...], slot: int) -> Columns:
    """Which communicator it is, another after a restart, and each rank's place in it."""
    steps = np.arange(begin, begin + shape[0])
    life = np.zeros(shape[0], np.int64)
    for on in f.restarts:
        life += steps >= np.flatnonzero(on)[0]
    machines, gpus = np.arange(f.machines)[:, None], np.arange(f.gpus)[None, :]
    first = np.searchsorted(f.stage, f.stage)[:, None]
    if slot == 0:
        number, rank = 0xC0FFEE00 + f.stage[:, None] * f.gpus + gpus, machines - first + 0 * gpus
        ranks = np.bincount(f.stage)[f.stage][:, None] + 0 * gpus
    elif slot == 2:
        number, rank = 0xD1D00000 + (machines - first) * f.gpus + gpus, f.stage[:, None] + 0 * gpus
        ranks = 0 * rank + f.stages
    else:
        rank = machines * f.gpus + gpus
        number, ranks = 0 * rank + 0xA1100000, 0 * rank + rank.size
    lives = [np.array([f"{one:016x}" for one in (number + (1 + n << 40)).ravel()]) for n in range(len(f.restarts) + 1)]
    return {
        "comm": np.stack(lives).reshape(-1, *number.shape)[life],
        "rank": np.broadcast_to(rank.astype(np.float64), shape),
        "ranks": np.broadcast_to(ranks.astype(np.float64), shape),
        "slot": np.full(shape, str(slot)),
    }


def _merged(parts: list[Columns]) -> Columns:
    """Several tables of the same columns as one, in order of time."""
    out = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    order = np.argsort(out["time"], kind="stable")
    return {name: values[order] for name, values in out.items()}


def earliest_ns(f: Fleet, second: float) -> int:
    """When the first reading of this second may be dated, by a clock that is behind."""
    return START + int((second - _SKEW * min(f.step_s, 1.0) - _JITTER_S) * SECOND)


def _rows(f: Fleet, table: str, columns: Columns, begin: int) -> Columns:
    """Flat columns in time order: clocks half a second apart, a late machine, and lost rows."""
    shape = next(iter(columns.values())).shape
    end = begin + shape[0]
    skew = _dice(f, "clocks").uniform(-_SKEW, _SKEW, f.machines) * min(f.step_s, 1.0)
    jitter = np.clip(_dice(f, f"jitter {table}", begin).normal(0, 0.01, shape[:2]), -_JITTER_S, _JITTER_S)
    at = START + ((f.seconds[begin:end, None] + skew + jitter) * SECOND).astype(np.int64)
    present = np.broadcast_to((_dice(f, f"lost {table}", begin).random(shape[:2]) > 0.003)[:, :, None], shape).copy()
    if f.machines > 8:
        late = int(_dice(f, "late").integers(f.machines))
        present[: max(0, len(f.seconds) // 20 - begin), late] = False
    for name, place in f.gone:
        cell = place.cell(begin, shape) if name in ("", table) else None
        if cell is not None:
            present[cell] = False
    time = np.broadcast_to(at[:, :, None], shape)[present]
    order = np.argsort(time, kind="stable")
    machines = np.array([name_of(number) for number in range(f.machines)])
    out: Columns = {"time": time[order], "machine": np.broadcast_to(machines[None, :, None], shape)[present][order]}
    if table != "host":
        key = [f"mlx5_{g}/1" for g in range(shape[2])] if table == "rdma" else [str(g) for g in range(shape[2])]
        out["port" if table == "rdma" else "gpu"] = np.broadcast_to(np.array(key), shape)[present][order]
    return out | {name: _typed(name, values[present][order]) for name, values in columns.items()}


def _typed(name: str, values: Array) -> Array:
    whole = name.endswith("_total") and not name.endswith("_seconds_total") and not np.isnan(values).any()
    if whole:
        return values.astype(np.int64)
    return values.astype(np.float64) if values.dtype.kind == "f" else values


def tasks_of(f: Fleet) -> Columns:
    """The table that says which task each machine works for, a row a minute."""
    minutes = np.arange(0, f.seconds[-1] + 1, 60)
    time = np.repeat(START + (minutes * SECOND).astype(np.int64), f.machines)
    names = np.tile([name_of(number) for number in range(f.machines)], len(minutes))
    return {"time": time, "machine": names, "task": np.full(len(time), "pretrain")}


def events_of(f: Fleet) -> Columns:
    """The events, in time order."""
    columns = list(zip(*sorted(f.events), strict=True))
    names = ("time", "machine", "source", "code", "severity", "message", "device")
    return {name: np.array(column) for name, column in zip(names, columns, strict=True)}
