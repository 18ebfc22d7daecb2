"""What each fault does to a pretend fleet, its effect on the others included (kinds: Minder, ByteRobust, fail-slow)."""

from __future__ import annotations

from collections.abc import Callable

from emulator.simulation.fleet_model import Culprit


def _slow_gpu(c: Culprit) -> None:
    c.slow(1.5, c.one)
    c.bend("gpu.sm_clock_hertz", c.one, "*", 0.65)
    c.bend("gpu.power_watts", c.one, "*", 0.75)
    c.bend("gpu.temperature_celsius", c.one, "+", 14)
    c.bend("gpu.throttle_thermal_seconds_total", c.one, "+", 0.6)


def _power_cap(c: Culprit) -> None:
    c.slow(1.25, c.all)
    c.bend("gpu.power_watts", c.all, "*", 0.7)
    c.bend("gpu.sm_clock_hertz", c.all, "*", 0.8)
    c.bend("gpu.throttle_power_seconds_total", c.all, "+", 0.6)
    c.device = None


def _slow_host(c: Culprit) -> None:
    c.slow(1.4, c.all, host=True)
    c.bend("cuda.synchronize_seconds_total", c.all, "*", 0.4)
    c.bend("host.cpu_utilization_ratio", c.all, "+", 0.4)
    c.bend("host.cpu_pressure_ratio", c.all, "+", 0.5)
    c.bend("host.processes_running", c.all, "+", 60)
    c.device = None


def _memory_pressure(c: Culprit) -> None:
    c.slow(1.2, c.all, host=True)
    c.bend("host.memory_utilization_ratio", c.all, "+", 0.4)
    c.bend("host.memory_pressure_ratio", c.all, "+", 0.3)
    c.bend("host.cpu_system_ratio", c.all, "+", 0.15)
    c.device = None


def _gc_pauses(c: Culprit) -> None:
    c.slow(1.25, c.one, host=True)
    c.bend("cuda.synchronize_seconds_total", c.one, "*", 0.5)
    c.bend("cuda.gc_seconds_total", c.one, "+", 0.2)
    c.bend("cuda.gc_pauses_total", c.one, "+", 2)


def _slow_link(c: Culprit) -> None:
    c.drag(1.6)
    c.bend("nccl.send_pending_ratio", c.one, "+", 0.6)
    c.bend("rdma.transmit_wait_ticks_total", c.one, "+", 4e6)
    c.device = f"rdma:mlx5_{c.gpu}/1"


def _packet_loss(c: Culprit) -> None:
    c.drag(1.25)
    c.bend("nccl.send_pending_ratio", c.one, "+", 0.4)
    c.bend("rdma.packet_sequence_errors_total", c.one, "+", 400)
    c.device = f"rdma:mlx5_{c.gpu}/1"


def _pcie_downgrade(c: Culprit) -> None:
    c.slow(1.3, c.one)
    c.bend("rdma.pfc_transmit_frames_total", c.one, "+", 4000)
    c.bend("rdma.cnp_sent_total", c.one, "+", 900)
    c.bend("gpu.pcie_receive_bytes_total", c.one, "*", 0.6)
    c.fleet.bend("gpu.pcie_width", c.one, "=", 8)


def _nic_down(c: Culprit) -> None:
    c.stall(5)
    c.bend("rdma.link_up", c.one, "=", 0)
    c.bend("rdma.rate_bits_per_second", c.one, "=", 0)
    c.device = f"rdma:mlx5_{c.gpu}/1"


def _ecc(c: Culprit) -> None:
    c.bend("gpu.ecc_corrected_total", c.one, "+", 40)
    c.bend("gpu.ecc_uncorrected_total", c.one, "+", 0.3)
    _idle(c, 8)


def _gpu_lost(c: Culprit) -> None:
    c.fleet.gone.append(("gpu", c.one))
    c.say("kernel_log", "xid:79", "crit", "GPU has fallen off the bus")
    c.stall(2)


def _gpu_hang(c: Culprit) -> None:
    _idle(c, 2)


def _idle(c: Culprit, after_s: float) -> None:
    """The culprit GPU stops working and the others spin in a collective."""
    still = c.stall(after_s)
    for metric in ("sm_active_ratio", "tensor_active_ratio", "graphics_active_ratio", "duty_cycle_ratio"):
        c.fleet.bend(f"gpu.{metric}", still, "=", 0.0)
    c.fleet.bend("gpu.power_watts", still, "*", 0.6)
    c.fleet.hung.append((still, "behind"))


def _nvlink(c: Culprit) -> None:
    c.slow(1.25, c.one)
    for way in ("transmit", "receive"):
        c.bend(f"gpu.nvlink_{way}_bytes_total", c.one, "*", 0.6)
    c.bend("gpu.nvlink_errors_total", c.one, "+", 25)


def _cuda_error(c: Culprit) -> None:
    c.say("kernel_log", "xid:31", "warn", "MMU fault")
    _rank_exit(c)


def _rank_exit(c: Culprit) -> None:
    c.say("nccl", "rank_exit", "crit", "a process left with live communicators")
    c.stall(1)
    c.fleet.gone += [("nccl", c.one), ("cuda", c.one)]


def _rank_hang(c: Culprit) -> None:
    c.fleet.hung.append((c.stall(1), "behind"))


def _wrong_collective(c: Culprit) -> None:
    c.fleet.hung.append((c.stall(1), "differs"))


def _storage(c: Culprit) -> None:
    c.slow(1.5, c.all, host=True)
    c.bend("cuda.synchronize_seconds_total", c.all, "*", 0.4)
    c.bend("host.cpu_iowait_ratio", c.all, "+", 0.35)
    c.bend("host.io_pressure_ratio", c.all, "+", 0.5)
    c.device = None


def _unreachable(c: Culprit) -> None:
    c.stall(1)
    c.fleet.gone.append(("", c.all))
    c.device = None


def _optics(c: Culprit) -> None:
    c.drag(1.1)
    c.bend("rdma.symbol_errors_total", c.one, "+", 12)
    c.bend("rdma.packet_sequence_errors_total", c.one, "+", 30)
    c.device = f"rdma:mlx5_{c.gpu}/1"


def _worn_gpu(c: Culprit) -> None:
    c.slow(1.03, c.one)
    c.bend("gpu.sm_clock_hertz", c.one, "*", 0.97)
    c.bend("gpu.power_watts", c.one, "*", 0.94)
    c.bend("gpu.temperature_celsius", c.one, "+", 5.5)
    c.bend("gpu.throttle_power_seconds_total", c.one, "+", 0.07)
    for unit in ("sm", "tensor", "dram"):
        c.bend(f"gpu.{unit}_active_ratio", c.one, "*", 0.92)


FAULTS: dict[str, Callable[[Culprit], None]] = {
    "slow_gpu": _slow_gpu,
    "power_cap": _power_cap,
    "slow_link": _slow_link,
    "packet_loss": _packet_loss,
    "slow_host": _slow_host,
    "memory_pressure": _memory_pressure,
    "rank_hang": _rank_hang,
    "rank_exit": _rank_exit,
    "wrong_collective": _wrong_collective,
    "gc_pauses": _gc_pauses,
    "ecc_error": _ecc,
    "pcie_downgrade": _pcie_downgrade,
    "nic_down": _nic_down,
    "gpu_lost": _gpu_lost,
    "gpu_hang": _gpu_hang,
    "nvlink_error": _nvlink,
    "cuda_error": _cuda_error,
    "storage_error": _storage,
    "machine_unreachable": _unreachable,
    "optics_error": _optics,
}
WEAK: dict[str, Callable[[Culprit], None]] = {"worn_gpu": _worn_gpu}
"""Faults of which no reading by itself says enough; they strike only where they are asked for by name."""
FAIL_SLOW: tuple[str, ...] = (
    *("slow_gpu", "power_cap", "slow_link", "packet_loss", "slow_host", "memory_pressure", "gc_pauses"),
    *("pcie_downgrade", "nvlink_error", "storage_error", "optics_error"),
)
"""Faults that leave the task running; two of these may strike at once."""
