"""What each fault does to a pretend fleet, its effect on the others included (kinds: Minder, ByteRobust)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from emulator.simulated import Fleet


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
