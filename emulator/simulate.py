"""Recordings of pretend fleets: one synchronous training task of any size, with a known fault or none.

The model: every iteration all GPUs compute, then talk; who needs longest sets the pace and waits least, the others wait
for it. Readings follow from that with offsets per device, noise, checkpoints, lost rows and harmless disturbances.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Columns = dict[str, Array]
SECOND = 10**9
START = 1_760_000_000 * SECOND
TABLES = ("host", "gpu", "rdma", "nccl", "cuda", "task", "event")
WAIT = 0.2  # share of an undisturbed iteration that every rank waits for others


@dataclass(slots=True)
class Fleet:
    """Time runs along axis 0, machines along axis 1, GPUs along axis 2; what a fault bends and the tables show."""

    machines: int
    gpus: int
    step_s: float
    rng: np.random.Generator
    seconds: Array
    """[step] since the start."""
    who: int = 0
    gpu: int = 0
    on: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool))
    """[step] whether the fault is there."""
    pace: Array = field(default_factory=lambda: np.zeros(0))
    """[step] iteration rate over the undisturbed one; 0 where the task stands still."""
    stuck: Array = field(default_factory=lambda: np.zeros(0, bool))
    """[step] whether ranks stand in a collective that does not end."""
    wait: Array = field(default_factory=lambda: np.zeros((0, 0, 0)))
    """Share of time spent waiting for others."""
    bends: dict[str, list[tuple[Any, str, Any]]] = field(default_factory=dict)
    """`table.metric` -> (index, how, by what) applied to the healthy readings (rates for counters)."""
    events: list[tuple[int, str, str, str, str, str]] = field(default_factory=list)
    gone: list[tuple[str, Any]] = field(default_factory=list)
    """Rows that are missing: table ("" for all) and index."""
    nccl: str = ""
    """What happens to the culprit's communicators: behind, differs, or nothing."""
    device: str | None = None

    def bend(self, key: str, index: Any, how: str, by: Any) -> None:
        """Let a reading be multiplied (`*`), added to (`+`) or set (`=`) at an index [step, machine, gpu]."""
        self.bends.setdefault(key, []).append((index, how, by))

    def slow(self, factor: float) -> None:
        """The culprit GPU computes longer: it waits least, and the others for it."""
        self.pace = np.where(self.on, self.pace / factor, self.pace)
        self.wait[self.on] = 1 - (1 - WAIT) / factor
        self.wait[self.on, self.who, self.gpu] = 0.02

    def stall(self, after_s: float) -> None:
        """All ranks stand still from a while after the onset."""
        self.stuck = self.on & (self.seconds >= self.seconds[self.on][0] + after_s)
        self.pace = np.where(self.stuck, 0.0, self.pace)
        self.wait[self.stuck] = 1.0

    def say(self, code: str, severity: str, message: str, after_s: float = 1.0) -> None:
        """An event on the culprit."""
        at = START + int((self.seconds[self.on][0] + after_s) * SECOND)
        source = "nccl" if code == "rank_exit" else "kernel_log"
        self.events.append((at, name_of(self.who), source, code, severity, message))

    @property
    def one(self) -> tuple[Array, int, int]:
        """Index of the culprit's GPU while the fault lasts."""
        return np.flatnonzero(self.on), self.who, self.gpu

    @property
    def all(self) -> tuple[Array, int]:
        """Index of the culprit machine while the fault lasts."""
        return np.flatnonzero(self.on), self.who


def name_of(machine: int) -> str:
    """The name of a machine by its number."""
    return f"m{machine:04d}"


def _slow_gpu(f: Fleet) -> None:
    f.slow(1.5)
    f.bend("gpu.sm_clock_hertz", f.one, "*", 0.65)
    f.bend("gpu.power_watts", f.one, "*", 0.75)
    f.bend("gpu.temperature_celsius", f.one, "+", 14)
    f.bend("gpu.throttle_thermal_seconds_total", f.one, "+", 0.8)


def _slow_host(f: Fleet) -> None:
    f.slow(1.4)
    f.wait[f.on, f.who] = 0.02
    f.bend("cuda.synchronize_seconds_total", f.all, "*", 0.4)
    f.bend("host.cpu_utilization_ratio", f.all, "+", 0.4)
    f.bend("host.cpu_pressure_ratio", f.all, "+", 0.5)
    f.bend("host.processes_running", f.all, "+", 60)
    f.device = None


def _gc_pauses(f: Fleet) -> None:
    f.slow(1.25)
    f.bend("cuda.synchronize_seconds_total", f.one, "*", 0.5)
    f.bend("cuda.gc_seconds_total", f.one, "+", 0.2)
    f.bend("cuda.gc_pauses_total", f.one, "+", 2)


def _slow_link(f: Fleet) -> None:
    f.pace = np.where(f.on, f.pace / 1.6, f.pace)
    f.wait[f.on] = 0.5
    f.bend("nccl.send_pending_ratio", f.one, "+", 0.6)
    f.bend("rdma.transmit_wait_ticks_total", f.one, "+", 4e6)
    f.device = f"rdma:mlx5_{f.gpu}/1"


def _pcie_downgrade(f: Fleet) -> None:
    f.slow(1.3)
    f.wait[f.on, f.who] = 0.1
    f.bend("rdma.pfc_transmit_frames_total", f.all, "+", 4000)
    f.bend("rdma.cnp_sent_total", f.all, "+", 900)
    f.bend("gpu.pcie_receive_bytes_total", f.all, "*", 0.6)
    f.bend("gpu.pcie_width", f.one, "=", 8)


def _nic_dropout(f: Fleet) -> None:
    f.stall(5)
    f.bend("rdma.link_up", f.one, "=", 0)
    f.bend("rdma.rate_bits_per_second", f.one, "=", 0)
    f.bend("rdma.link_downed_total", (np.flatnonzero(f.on)[:1], f.who, f.gpu), "+", 1)
    f.device = f"rdma:mlx5_{f.gpu}/1"


def _ecc(f: Fleet) -> None:
    f.bend("gpu.ecc_corrected_total", f.one, "+", 40)
    f.bend("gpu.ecc_uncorrected_total", f.one, "+", 0.3)
    _idle(f, 8)


def _gpu_drop(f: Fleet) -> None:
    f.gone.append(("gpu", f.one))
    f.say("xid:79", "crit", "GPU has fallen off the bus")
    f.stall(2)


def _gpu_hang(f: Fleet) -> None:
    _idle(f, 2)


def _idle(f: Fleet, after_s: float) -> None:
    """The culprit GPU stops working and the others spin in a collective."""
    f.stall(after_s)
    stuck = (np.flatnonzero(f.stuck), f.who, f.gpu)
    for metric in ("sm_active_ratio", "tensor_active_ratio", "graphics_active_ratio", "duty_cycle_ratio"):
        f.bend(f"gpu.{metric}", stuck, "=", 0.0)
    f.bend("gpu.power_watts", stuck, "*", 0.6)
    f.nccl = "behind"


def _nvlink(f: Fleet) -> None:
    f.slow(1.25)
    for way in ("transmit", "receive"):
        f.bend(f"gpu.nvlink_{way}_bytes_total", f.one, "*", 0.6)
    f.bend("gpu.nvlink_errors_total", f.one, "+", 25)


def _cuda_error(f: Fleet) -> None:
    _rank_exit(f)
    f.say("xid:31", "warn", "MMU fault")


def _rank_exit(f: Fleet) -> None:
    f.say("rank_exit", "crit", "a process left with live communicators")
    f.stall(1)
    f.gone += [("nccl", f.one), ("cuda", f.one)]


def _rank_hang(f: Fleet) -> None:
    f.stall(1)
    f.wait[f.stuck, f.who, f.gpu] = 0.0
    f.nccl = "behind"


def _wrong_collective(f: Fleet) -> None:
    f.stall(1)
    f.nccl = "differs"


def _storage(f: Fleet) -> None:
    f.slow(1.5)
    f.wait[f.on, f.who] = 0.02
    f.bend("cuda.synchronize_seconds_total", f.all, "*", 0.4)
    f.bend("host.cpu_iowait_ratio", f.all, "+", 0.35)
    f.bend("host.io_pressure_ratio", f.all, "+", 0.5)
    f.device = None


def _unreachable(f: Fleet) -> None:
    f.stall(1)
    f.gone.append(("", f.all))
    f.device = None


def _optics(f: Fleet) -> None:
    f.slow(1.1)
    f.bend("rdma.symbol_errors_total", f.one, "+", 12)
    f.bend("rdma.packet_sequence_errors_total", f.one, "+", 30)
    f.device = f"rdma:mlx5_{f.gpu}/1"


FAULTS: dict[str, Callable[[Fleet], None]] = {
    "slow_gpu": _slow_gpu,
    "slow_link": _slow_link,
    "slow_host": _slow_host,
    "rank_hang": _rank_hang,
    "rank_exit": _rank_exit,
    "wrong_collective": _wrong_collective,
    "gc_pauses": _gc_pauses,
    "ecc_error": _ecc,
    "pcie_downgrade": _pcie_downgrade,
    "nic_dropout": _nic_dropout,
    "gpu_drop": _gpu_drop,
    "gpu_hang": _gpu_hang,
    "nvlink_error": _nvlink,
    "cuda_error": _cuda_error,
    "storage_error": _storage,
    "machine_unreachable": _unreachable,
    "optics_error": _optics,
}


def simulate(
    machines: int = 64,
    minutes: float = 30,
    step_seconds: float = 1.0,
    fault: str = "random",
    seed: int = 0,
    gpus: int = 8,
    tables: Collection[str] = TABLES,
) -> tuple[dict[str, Columns], dict[str, Any]]:
    """Tables (name -> column -> array) and labels of one recording; equal arguments give equal recordings.

    `fault` is one of FAULTS, "random" or "none". Size: about 0.5 kB a GPU and step. Raises ValueError.
    """
    _check(machines, minutes, step_seconds, fault, gpus)
    rng = np.random.default_rng([seed, machines, gpus])
    seconds = np.arange(int(minutes * 60 / step_seconds)) * step_seconds
    fleet = Fleet(machines, gpus, step_seconds, rng, seconds)
    kind = rng.choice(sorted(FAULTS)) if fault == "random" else fault
    _prepare(fleet)
    if kind != "none":
        FAULTS[kind](fleet)
    _checkpoint(fleet)
    found = {name: _table(fleet, name) for name in tables if name not in ("task", "event")}
    if "task" in tables:
        found["task"] = _tasks(fleet)
    if "event" in tables and fleet.events:
        found["event"] = _events(fleet)
    return found, _labels(fleet, kind)


def _check(machines: int, minutes: float, step_seconds: float, fault: str, gpus: int) -> None:
    if fault not in (*FAULTS, "random", "none"):
        raise ValueError(f"no fault is called {fault}; there are {', '.join(FAULTS)}, random and none")
    if machines < 1 or gpus < 1 or step_seconds <= 0 or minutes * 60 < 10 * step_seconds:
        raise ValueError("a fleet needs at least one machine with one GPU, and ten steps of time")


def _prepare(f: Fleet) -> None:
    """A healthy task, and where and when the fault will be: in the second half of the first two thirds."""
    total = f.seconds[-1]
    f.who, f.gpu = int(f.rng.integers(f.machines)), int(f.rng.integers(f.gpus))
    begin = total * f.rng.uniform(1 / 3, 2 / 3)
    f.on = (f.seconds >= begin) & (f.seconds < begin + max(total / 4, 10 * f.step_s))
    f.pace = np.ones(len(f.seconds))
    f.stuck = np.zeros(len(f.seconds), bool)
    f.wait = np.full((len(f.seconds), f.machines, f.gpus), WAIT)
    f.device = f"gpu:{f.gpu}"


def _checkpoint(f: Fleet) -> None:
    """Every ten minutes the task writes a checkpoint for half a minute; nobody computes or waits for anybody."""
    saving = (f.seconds % 600 > 400) & (f.seconds % 600 < 430) & ~f.stuck
    f.pace = np.where(saving, 0.0, f.pace)
    f.wait[saving] = 0.01
    f.bend("host.disk_write_bytes_total", (np.flatnonzero(saving),), "+", 8e8)
    f.bend("host.cpu_iowait_ratio", (np.flatnonzero(saving),), "+", 0.1)


def _labels(f: Fleet, kind: str) -> dict[str, Any]:
    at = f.seconds[f.on]
    first, last = (START + int(s * SECOND) for s in (at[0], at[-1] + f.step_s))
    fault = {"machine": name_of(f.who), "device": f.device, "kind": str(kind), "start": first, "end": last}
    faults = [] if kind == "none" else [fault]
    return {"task": "pretrain", "machines": f.machines, "step_seconds": f.step_s, "faults": faults}


Reading = tuple[str, float, float, float]
"""Metric, level, offset between devices and noise (both as a share of the level, or absolute at level 0)."""
_HOST: tuple[Reading, ...] = (
    ("cpu_utilization_ratio", 0.3, 0.05, 0.05),
    ("cpu_system_ratio", 0.05, 0.1, 0.1),
    ("cpu_iowait_ratio", 0.004, 0.3, 0.5),
    ("cpu_pressure_ratio", 0.02, 0.2, 0.5),
    ("memory_utilization_ratio", 0.45, 0.08, 0.002),
    ("memory_pressure_ratio", 0.0, 0.0, 0.0),
    ("io_pressure_ratio", 0.01, 0.3, 0.5),
    ("disk_read_bytes_total", 6e7, 0.1, 0.4),
    ("disk_write_bytes_total", 2e6, 0.2, 0.6),
    ("network_receive_bytes_total", 3e6, 0.1, 0.3),
    ("network_transmit_bytes_total", 3e6, 0.1, 0.3),
    ("tcp_retransmit_segments_total", 0.5, 0.3, 1.0),
    ("context_switches_total", 9e4, 0.05, 0.1),
    ("processes_running", 18.0, 0.05, 0.15),
)
_GPU: tuple[Reading, ...] = (
    ("duty_cycle_ratio", 0.99, 0.001, 0.004),
    ("power_watts", 120.0, 0.05, 0.02),
    ("temperature_celsius", 61.0, 0.06, 0.006),
    ("sm_clock_hertz", 1.95e9, 0.008, 0.006),
    ("memory_used_bytes", 6.9e10, 0.01, 0.0),
    ("graphics_active_ratio", 0.97, 0.002, 0.006),
    ("sm_active_ratio", 0.05, 0.02, 0.05),
    ("tensor_active_ratio", 0.0, 0.0, 0.004),
    ("dram_active_ratio", 0.05, 0.02, 0.05),
    ("pcie_transmit_bytes_total", 8e7, 0.05, 0.1),
    ("pcie_receive_bytes_total", 8e7, 0.05, 0.1),
    ("nvlink_transmit_bytes_total", 1e6, 0.01, 0.1),
    ("nvlink_receive_bytes_total", 1e6, 0.01, 0.1),
    ("pcie_generation", 5.0, 0.0, 0.0),
    ("pcie_width", 16.0, 0.0, 0.0),
    ("ecc_corrected_total", 0.0, 0.0, 0.0),
    ("ecc_uncorrected_total", 0.0, 0.0, 0.0),
    ("nvlink_errors_total", 0.0, 0.0, 0.0),
    ("throttle_thermal_seconds_total", 0.0, 0.0, 0.0),
    ("throttle_power_seconds_total", 0.05, 0.3, 0.5),
)
_RDMA: tuple[Reading, ...] = (
    ("transmit_bytes_total", 1e6, 0.05, 0.1),
    ("receive_bytes_total", 1e6, 0.05, 0.1),
    ("transmit_wait_ticks_total", 3e3, 0.4, 1.0),
    ("pfc_transmit_frames_total", 3.0, 0.3, 2.0),
    ("ecn_marked_packets_total", 30.0, 0.3, 0.8),
    ("cnp_sent_total", 25.0, 0.3, 0.8),
    ("packet_sequence_errors_total", 0.0, 0.0, 0.02),
    ("symbol_errors_total", 0.0, 0.0, 0.0),
    ("link_downed_total", 0.0, 0.0, 0.0),
    ("rate_bits_per_second", 4e11, 0.0, 0.0),
    ("link_up", 1.0, 0.0, 0.0),
)
_NCCL: tuple[Reading, ...] = (
    ("host_blocked_seconds_total", 0.0, 0.0, 0.01),
    ("send_pending_ratio", 0.08, 0.1, 0.3),
)
_CUDA: tuple[Reading, ...] = (
    ("synchronize_seconds_total", 0.0, 0.0, 0.01),
    ("launches_total", 20.0, 0.05, 0.2),
    ("gc_pauses_total", 0.2, 0.1, 0.5),
    ("gc_seconds_total", 0.004, 0.1, 0.5),
)
_READINGS: Mapping[str, tuple[Reading, ...]] = {
    "host": _HOST,
    "gpu": _GPU,
    "rdma": _RDMA,
    "nccl": _NCCL,
    "cuda": _CUDA,
}
# What training adds, per unit of pace; the GPUs' own share of time computing scales some of it.
_WORK: Mapping[str, float] = {
    "gpu.power_watts": 530.0,
    "gpu.sm_active_ratio": 0.75,
    "gpu.tensor_active_ratio": 0.42,
    "gpu.dram_active_ratio": 0.35,
    "gpu.pcie_transmit_bytes_total": 2.1e9,
    "gpu.pcie_receive_bytes_total": 2.2e9,
    "gpu.nvlink_transmit_bytes_total": 1.2e11,
    "gpu.nvlink_receive_bytes_total": 1.2e11,
    "rdma.transmit_bytes_total": 1.6e10,
    "rdma.receive_bytes_total": 1.6e10,
    "cuda.launches_total": 3000.0,
}


def _table(f: Fleet, table: str) -> Columns:
    shape = (len(f.seconds), f.machines, 1 if table == "host" else f.gpus)
    columns: Columns = {}
    for name, level, offset, noise in _READINGS[table]:
        rate = _reading(f, f"{table}.{name}", shape, (level, offset, noise))
        columns[name] = _counted(rate, f) if name.endswith("_total") else rate
    if table == "nccl":
        columns |= _communicators(f, shape)
    return _rows(f, table, columns, shape)


def _reading(f: Fleet, key: str, shape: tuple[int, ...], form: tuple[float, float, float]) -> Array:
    level, offset, noise = form
    scale = abs(level) or 1.0
    device = f.rng.normal(0, 1, shape[1:]).astype(np.float32) * np.float32(offset * scale)
    out: Array = f.rng.normal(0, 1, shape).astype(np.float32) * np.float32(noise * scale) + device + np.float32(level)
    if key in _WORK:
        # Samples cut iterations at different phases, hence the ripple.
        ripple = 1 + 0.06 * f.rng.standard_normal(shape, dtype=np.float32) / max(1.0, f.step_s) ** 0.5
        out += np.float32(_WORK[key]) * f.pace[:, None, None].astype(np.float32) * ripple
    if key == "nccl.host_blocked_seconds_total":
        out += f.wait
    if key == "cuda.synchronize_seconds_total":
        # The thread waits for its GPU all the time, computing or not, unless it comes late itself.
        out += np.float32(0.88) * ((f.pace > 0) | f.stuck)[:, None, None]
    _disturb(f, key, out)
    for index, how, by in f.bends.get(key, []):
        here = index if shape[2] > 1 or len(index) < 3 else index[:2]
        out[here] = {"*": out[here] * by, "+": out[here] + by, "=": by}[how]
    bound = 1.0 if key.endswith("_ratio") else np.inf
    return np.clip(out, 0.0, bound)


def _disturb(f: Fleet, key: str, out: Array) -> None:
    """Harmless: other work on one machine for up to half a minute, about twice an hour and ten machines."""
    if key not in ("host.cpu_utilization_ratio", "host.disk_read_bytes_total", "rdma.ecn_marked_packets_total"):
        return
    for _ in range(f.rng.poisson(f.machines * f.seconds[-1] / 3600 / 5)):
        begin, machine = f.rng.uniform(0, f.seconds[-1]), f.rng.integers(f.machines)
        during = (f.seconds >= begin) & (f.seconds < begin + f.rng.uniform(5, 30))
        out[during, machine] *= 2.5


def _counted(rate: Array, f: Fleet) -> Array:
    """A counter that grows at this rate, in fractions only where it counts seconds."""
    return np.cumsum(rate, axis=0, dtype=np.float64) * f.step_s


def _communicators(f: Fleet, shape: tuple[int, ...]) -> Columns:
    """The data-parallel communicators: GPU g of every machine shares one."""
    done = np.floor(np.cumsum(f.pace * f.step_s * 3.1))[:, None, None]
    operations = np.broadcast_to(done, shape).copy()
    operations[f.stuck] += 1
    if f.nccl == "behind":
        operations[f.stuck, f.who, f.gpu] -= 1
    pending = np.broadcast_to(f.stuck[:, None, None], shape).copy()
    operation = np.full(shape, "AllReduce:bfloat16:4194304", dtype="<U26")
    if f.nccl == "behind":
        pending[f.stuck, f.who, f.gpu] = False
    if f.nccl == "differs":
        operation[f.stuck, f.who, f.gpu] = "AllGather:bfloat16:4194304"
    still = np.maximum.accumulate(np.where(np.diff(done[:, 0, 0], prepend=-1.0) > 0, f.seconds, 0.0))
    return {
        "comm": np.broadcast_to(np.array([f"{0xC0FFEE + g:016x}" for g in range(f.gpus)]), shape),
        "rank": np.broadcast_to(np.arange(f.machines, dtype=np.float64)[None, :, None], shape),
        "ranks": np.full(shape, float(f.machines)),
        "operations_total": operations.astype(np.int64),
        "operation": operation,
        "bytes_total": (operations * 8388608).astype(np.int64),
        "pending": pending.astype(np.float64),
        "idle_seconds": np.broadcast_to((f.seconds - still)[:, None, None], shape),
    }


def _rows(f: Fleet, table: str, columns: Columns, shape: tuple[int, ...]) -> Columns:
    """Flat columns in time order: clocks half a second apart, a late machine, and lost rows."""
    skew = f.rng.uniform(-0.4, 0.4, f.machines) * min(f.step_s, 1.0)
    jitter = f.rng.normal(0, 0.01, shape[:2])
    at = START + ((f.seconds[:, None] + skew + jitter) * SECOND).astype(np.int64)
    keep = f.rng.random(shape[:2]) > 0.003
    if f.machines > 8:
        keep[: len(f.seconds) // 20, (f.who + 1) % f.machines] = False
    kept = np.broadcast_to(keep[:, :, None], shape).copy()
    for name, index in f.gone:
        if name in ("", table):
            kept[index] = False
    time = np.broadcast_to(at[:, :, None], shape)[kept]
    order = np.argsort(time, kind="stable")
    machines = np.array([name_of(number) for number in range(f.machines)])
    out: Columns = {"time": time[order]}
    out["machine"] = np.broadcast_to(machines[None, :, None], shape)[kept][order]
    if table != "host":
        key = [f"mlx5_{g}/1" for g in range(shape[2])] if table == "rdma" else [str(g) for g in range(shape[2])]
        out["port" if table == "rdma" else "gpu"] = np.broadcast_to(np.array(key), shape)[kept][order]
    if table == "nccl":
        out["slot"] = np.full(len(time), "0")
    return out | {name: _typed(name, values[kept][order]) for name, values in columns.items()}


def _typed(name: str, values: Array) -> Array:
    whole = name.endswith("_total") and not name.endswith("_seconds_total")
    if whole:
        return values.astype(np.int64)
    return values.astype(np.float64) if values.dtype.kind == "f" else values


def _tasks(f: Fleet) -> Columns:
    minutes = np.arange(0, f.seconds[-1] + 1, 60)
    time = np.repeat(START + (minutes * SECOND).astype(np.int64), f.machines)
    names = np.tile([name_of(number) for number in range(f.machines)], len(minutes))
    return {"time": time, "machine": names, "task": np.full(len(time), "pretrain")}


def _events(f: Fleet) -> Columns:
    columns = list(zip(*sorted(f.events), strict=True))
    names = ("time", "machine", "source", "code", "severity", "message")
    out: Columns = {name: np.array(column) for name, column in zip(names, columns, strict=True)}
    out["device"] = np.full(len(f.events), f"gpu:{f.gpu}")
    return out
