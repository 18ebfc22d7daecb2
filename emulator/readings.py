"""From a pretend fleet to tables: healthy levels, offsets between devices, noise, counters, clocks and lost rows."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from emulator.simulated import SECOND, START, Array, Columns, Fleet, name_of

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
    ("active_ratio", 0.1, 0.0, 0.02),
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


def table_of(f: Fleet, table: str) -> Columns:
    """One table of device readings, rows in time order."""
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
    if key in ("nccl.host_blocked_seconds_total", "nccl.active_ratio"):
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


def tasks_of(f: Fleet) -> Columns:
    """The table that says which task each machine works for, a row a minute."""
    minutes = np.arange(0, f.seconds[-1] + 1, 60)
    time = np.repeat(START + (minutes * SECOND).astype(np.int64), f.machines)
    names = np.tile([name_of(number) for number in range(f.machines)], len(minutes))
    return {"time": time, "machine": names, "task": np.full(len(time), "pretrain")}


def events_of(f: Fleet) -> Columns:
    """The events, in time order."""
    columns = list(zip(*sorted(f.events), strict=True))
    names = ("time", "machine", "source", "code", "severity", "message")
    out: Columns = {name: np.array(column) for name, column in zip(names, columns, strict=True)}
    out["device"] = np.full(len(f.events), f"gpu:{f.gpu}")
    return out
