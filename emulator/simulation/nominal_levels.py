"""What healthy devices of a pretend fleet read, at rest and at work, and how stages of a pipeline differ."""

from __future__ import annotations

from collections.abc import Mapping

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
    ("power_watts", 120.0, 0.08, 0.02),
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
READINGS: Mapping[str, tuple[Reading, ...]] = {
    "host": _HOST,
    "gpu": _GPU,
    "rdma": _RDMA,
    "nccl": _NCCL,
    "cuda": _CUDA,
}
# What training adds, per unit of pace; the GPUs' own share of time computing scales some of it.
WORK: Mapping[str, float] = {
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


# Work of the first and the last stage of a pipeline over that of the others.
ENDS: Mapping[str, tuple[float, float]] = {
    "gpu.power_watts": (0.95, 1.06),
    "gpu.tensor_active_ratio": (0.92, 1.1),
    "gpu.dram_active_ratio": (1.1, 1.15),
    "gpu.sm_active_ratio": (0.97, 1.03),
    "rdma.transmit_bytes_total": (0.7, 0.6),
    "rdma.receive_bytes_total": (0.6, 0.7),
    "gpu.pcie_receive_bytes_total": (1.3, 1.0),
    "cuda.launches_total": (1.1, 1.2),
}
LEVELS: Mapping[str, tuple[float, float]] = {
    "gpu.memory_used_bytes": (1.1, 0.9),
    "host.cpu_utilization_ratio": (1.4, 1.0),
    "host.disk_read_bytes_total": (2.0, 0.5),
}
