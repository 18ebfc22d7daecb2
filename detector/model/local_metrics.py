"""Readings that no other machine's fault moves: who deviates by one of these is no victim, whatever else is wrong.

What a machine waits for, sends and computes follows from its peers; its clocks, its errors and what its own programs
press for do not.
"""

from __future__ import annotations

_ROWS = {
    "host": "cpu_system_ratio cpu_iowait_ratio cpu_pressure_ratio memory_utilization_ratio memory_pressure_ratio "
    "io_pressure_ratio processes_running",
    "gpu": "power_limit_watts temperature_celsius memory_temperature_celsius sm_clock_hertz memory_clock_hertz "
    "pcie_generation pcie_width pcie_replay_total pcie_correctable_errors_total pcie_fatal_errors_total "
    "nvlink_errors_total nvlink_links_up ecc_corrected_total ecc_uncorrected_total remapped_rows "
    "throttle_power_seconds_total throttle_thermal_seconds_total",
    "rdma": "packet_sequence_errors_total symbol_errors_total link_downed_total rate_bits_per_second link_up",
    "cuda": "gc_pauses_total gc_seconds_total",
    "process": "cpu_wait_seconds_total disk_wait_seconds_total",
}
OWN = frozenset(f"{table}.{name}" for table, names in _ROWS.items() for name in names.split())
