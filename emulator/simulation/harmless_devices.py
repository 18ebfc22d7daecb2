"""Harmless things of GPUs, links and racks: a small function and a row of the table each.

Ideas: NVIDIA's documents on what needs no action, and operators' reports.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from emulator.simulation.fleet_model import Place
from emulator.simulation.scene import Kind, Scene


def _corrected_ecc(s: Scene) -> None:
    s.add("gpu.ecc_corrected_total", 0.05, 2.0)


def _row_remapped(s: Scene) -> None:
    s.say("xid:63", "a row will be remapped at the next reset")


def _harmless_xid(s: Scene) -> None:
    s.say("xid:13", "graphics engine exception in a debugging process")


_READ_SLOWLY = ("gpu.power_watts", "gpu.temperature_celsius", "gpu.sm_clock_hertz", "gpu.duty_cycle_ratio")
_BY_COUNTERS = ("gpu.graphics_active_ratio", "gpu.sm_active_ratio", "gpu.tensor_active_ratio", "gpu.dram_active_ratio")


def _sensors_stick(s: Scene) -> None:
    for key in _READ_SLOWLY:
        s.fleet.bend(key, s.place(), "hold", 0.0)


def _glitch(s: Scene) -> None:
    s.be("gpu.power_watts", float(s.rng.choice([0.0, 2400.0, 65535.0])))


def _profiler_holds_counters(s: Scene) -> None:
    for key in _BY_COUNTERS:
        s.be(key, np.nan)


def _cooling_swings(s: Scene) -> None:
    s.add("gpu.temperature_celsius", 2, 8)


def _small_gpu_process(s: Scene) -> None:
    s.add("gpu.memory_used_bytes", 3e8, 2e9)


def _neighbour_storm(s: Scene) -> None:
    s.times("rdma.ecn_marked_packets_total", 5, 60)
    s.times("rdma.cnp_sent_total", 5, 60)
    s.add("rdma.pfc_transmit_frames_total", 50, 2000)


def _incast(s: Scene) -> None:
    s.add("rdma.transmit_wait_ticks_total", 1e5, 4e6)
    s.add("rdma.ecn_marked_packets_total", 200, 3000)


def _absorbed_flap(s: Scene) -> None:
    s.be("rdma.link_up", 0.0)
    once = 1 / (int(s.on.sum()) * s.fleet.step_s)
    s.add("rdma.link_downed_total", once, once)
    s.fleet.drags.append((s.on, 1.5))


def _few_lost_packets(s: Scene) -> None:
    s.add("rdma.packet_sequence_errors_total", 0.2, 5)


def _perftest(s: Scene) -> None:
    s.times("rdma.transmit_bytes_total", 1.2, 2.0)


def _links_save_power(s: Scene) -> None:
    idle = s.on & (s.fleet.alive == 0)
    s.fleet.bend("gpu.pcie_generation", Place(idle, s.who, s.gpu), "=", float(s.rng.choice([1, 2, 3])))


def _hot(s: Scene) -> None:
    s.add("gpu.temperature_celsius", 3, 11)


def _slow_chip(s: Scene) -> None:
    s.times("gpu.sm_clock_hertz", 0.97, 0.995)
    s.late(1.005, 1.03, host=False)


def _memory_differs(s: Scene) -> None:
    s.add("gpu.memory_used_bytes", 4e8, 3e9)


def _other_limit(s: Scene) -> None:
    s.times("gpu.power_watts", 0.92, 0.97)
    s.times("gpu.sm_clock_hertz", 0.98, 0.995)
    s.late(1.005, 1.03, host=False)


def _new_kernel(s: Scene) -> None:
    s.times("gpu.sm_active_ratio", 1.04, 1.15)


def _marked_port(s: Scene) -> None:
    s.times("rdma.cnp_sent_total", 3, 30)
    s.times("rdma.ecn_marked_packets_total", 3, 30)


def _storage_port(s: Scene) -> None:
    s.add("rdma.receive_bytes_total", 5e8, 3e9)


def _noisy_cable(s: Scene) -> None:
    s.add("rdma.symbol_errors_total", 0.02, 0.6)


OF_DEVICES: Mapping[str, Kind] = {
    "corrected_ecc": Kind(_corrected_ecc, "device", 0.05, 20, 200),
    "row_remapped": Kind(_row_remapped, "device", 0.02, 5, 5),
    "harmless_xid": Kind(_harmless_xid, "device", 0.02, 5, 5),
    "sensors_stick": Kind(_sensors_stick, "device", 0.05, 30, 300),
    "glitch": Kind(_glitch, "device", 0.05, 1, 1),
    "profiler_holds_counters": Kind(_profiler_holds_counters, "machine", 0.03, 30, 300),
    "cooling_swings": Kind(_cooling_swings, "rack", 0.4, 240, 900),
    "small_gpu_process": Kind(_small_gpu_process, "device", 0.06, 10, 600),
    "neighbour_storm": Kind(_neighbour_storm, "rail", 0.4, 20, 600),
    "incast": Kind(_incast, "device", 0.08, 2, 15),
    "absorbed_flap": Kind(_absorbed_flap, "device", 0.03, 1, 2),
    "few_lost_packets": Kind(_few_lost_packets, "device", 0.06, 5, 60),
    "perftest": Kind(_perftest, "device", 0.04, 5, 30),
    "links_save_power": Kind(_links_save_power, "task", 0.6, 0, 0),
    "hot_rack": Kind(_hot, "rack", 0.3, 0, 0),
    "hot_gpu": Kind(_hot, "device", 0.3, 0, 0),
    "slow_chip": Kind(_slow_chip, "device", 0.4, 0, 0),
    "memory_differs": Kind(_memory_differs, "device", 0.4, 0, 0),
    "other_limit": Kind(_other_limit, "machine", 0.2, 0, 0),
    "new_kernel": Kind(_new_kernel, "rack", 0.2, 0, 0),
    "marked_port": Kind(_marked_port, "device", 0.3, 0, 0),
    "storage_port": Kind(_storage_port, "device", 0.2, 0, 0),
    "noisy_cable": Kind(_noisy_cable, "device", 0.3, 0, 0),
}
