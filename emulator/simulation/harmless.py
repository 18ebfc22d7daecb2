"""Harmless things of hosts, devices and the task: a row of the table each, and a function where a row does not do.

Ideas: operators' reports of Minder, ByteRobust, Falcon and Llama 3, and NVIDIA's documents on what needs no action.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from emulator.simulation.fleet_model import Place
from emulator.simulation.scene import Kind, Scene

_READ_SLOWLY = ("gpu.power_watts", "gpu.temperature_celsius", "gpu.sm_clock_hertz", "gpu.duty_cycle_ratio")
_BY_COUNTERS = ("gpu.graphics_active_ratio", "gpu.sm_active_ratio", "gpu.tensor_active_ratio", "gpu.dram_active_ratio")


def _agent_restart(s: Scene) -> None:
    s.fleet.gone.append(("", s.place(True)))


def _source_stalls(s: Scene) -> None:
    s.fleet.gone.append((str(s.rng.choice(["host", "gpu", "rdma", "cuda"])), s.place(True)))


def _data_stall(s: Scene) -> None:
    s.fleet.alive = np.where(s.on, 0.0, s.fleet.alive)
    s.add("host.io_pressure_ratio", 0.05, 0.3)


def _load_changes(s: Scene) -> None:
    s.fleet.load[s.on] *= s.rng.uniform(0.75, 0.97)


def _row_remapped(s: Scene) -> None:
    s.say("xid:63", "a row will be remapped at the next reset")


def _harmless_xid(s: Scene) -> None:
    s.say("xid:13", "graphics engine exception in a debugging process")


def _sensors_stick(s: Scene) -> None:
    for key in _READ_SLOWLY:
        s.fleet.bend(key, s.place(), "hold", 0.0)


def _glitch(s: Scene) -> None:
    s.be("gpu.power_watts", float(s.rng.choice([0.0, 2400.0, 65535.0])))


def _profiler_holds_counters(s: Scene) -> None:
    for key in _BY_COUNTERS:
        s.be(key, np.nan)


def _absorbed_flap(s: Scene) -> None:
    s.be("rdma.link_up", 0.0)
    once = 1 / (int(s.on.sum()) * s.fleet.step_s)
    s.add("rdma.link_downed_total", once, once)
    s.fleet.drags.append((s.on, 1.5))


def _links_save_power(s: Scene) -> None:
    idle = s.on & (s.fleet.alive == 0)
    s.fleet.bend("gpu.pcie_generation", Place(idle, s.who, s.gpu), "=", float(s.rng.choice([1, 2, 3])))


_ACTS: Mapping[str, Callable[[Scene], None]] = {
    act.__name__[1:]: act
    for act in (
        _agent_restart,
        _source_stalls,
        _data_stall,
        _load_changes,
        _row_remapped,
        _harmless_xid,
        _sensors_stick,
        _glitch,
        _profiler_holds_counters,
        _absorbed_flap,
        _links_save_power,
    )
}

# name | scope | rate | least s | most s | what it does: to a reading, `+` an amount or `*` a factor that is drawn from a
# range, `host.late` or `gpu.late` * a factor of the iteration's time, or one of the functions above
_ROWS = """
cron_job | machine | 0.25 | 3 | 60 | host.cpu_utilization_ratio + 0.05..0.4, host.processes_running + 4..40, host.context_switches_total * 1.1..1.8
log_rotation | machine | 0.12 | 5 | 90 | host.disk_write_bytes_total + 8e7..7e8, host.cpu_iowait_ratio + 0.005..0.04
package_upgrade | machine | 0.05 | 60 | 420 | host.cpu_utilization_ratio + 0.05..0.3, host.disk_write_bytes_total + 5e7..4e8, host.processes_running + 3..25
backup | machine | 0.04 | 180 | 1200 | host.disk_read_bytes_total + 1e8..9e8, host.network_transmit_bytes_total + 5e7..6e8
image_pull | machine | 0.05 | 30 | 400 | host.network_receive_bytes_total + 1e8..9e8, host.disk_write_bytes_total + 1e8..8e8
user_process | machine | 0.05 | 60 | 1200 | host.cpu_utilization_ratio + 0.02..0.2, host.memory_utilization_ratio + 0.01..0.1, host.processes_running + 1..9
memory_compaction | machine | 0.06 | 4 | 70 | host.cpu_system_ratio + 0.03..0.15
file_cache | machine | 0.06 | 120 | 900 | host.memory_utilization_ratio + 0.03..0.25
brief_contention | machine | 0.05 | 4 | 45 | host.cpu_pressure_ratio + 0.1..0.4, host.late * 1.02..1.15
agent_restart | machine | 0.05 | 3 | 150 | agent_restart
source_stalls | machine | 0.05 | 15 | 200 | source_stalls
collection_pause | device | 0.08 | 1 | 4 | cuda.gc_seconds_total + 0.05..0.4, host.late * 1.05..1.4
traced_rank | device | 0.04 | 20 | 45 | host.disk_write_bytes_total + 2e7..2e8, host.late * 1.005..1.04
upload | machine | 0.06 | 60 | 400 | host.network_transmit_bytes_total + 5e7..5e8
data_stall | task | 0.6 | 3 | 25 | data_stall
load_changes | task | 0.5 | 200 | 1500 | load_changes
head_node | machine | 0.4 | 0 | 0 | host.cpu_utilization_ratio + 0.02..0.15, host.network_receive_bytes_total + 2e6..4e7
uneven_numa | machine | 0.2 | 0 | 0 | host.cpu_system_ratio + 0.01..0.06, host.context_switches_total * 1.1..1.5
raid_check | machine | 0.1 | 0 | 0 | host.disk_read_bytes_total + 1e8..4e8
dirty_link | machine | 0.2 | 0 | 0 | host.tcp_retransmit_segments_total + 1..25
corrected_ecc | device | 0.05 | 20 | 200 | gpu.ecc_corrected_total + 0.05..2.0
row_remapped | device | 0.02 | 5 | 5 | row_remapped
harmless_xid | device | 0.02 | 5 | 5 | harmless_xid
sensors_stick | device | 0.05 | 30 | 300 | sensors_stick
glitch | device | 0.05 | 1 | 1 | glitch
profiler_holds_counters | machine | 0.03 | 30 | 300 | profiler_holds_counters
cooling_swings | rack | 0.4 | 240 | 900 | gpu.temperature_celsius + 2..8
small_gpu_process | device | 0.06 | 10 | 600 | gpu.memory_used_bytes + 3e8..2e9
neighbour_storm | rail | 0.4 | 20 | 600 | rdma.ecn_marked_packets_total * 5..60, rdma.cnp_sent_total * 5..60, rdma.pfc_transmit_frames_total + 50..2000
incast | device | 0.08 | 2 | 15 | rdma.transmit_wait_ticks_total + 1e5..4e6, rdma.ecn_marked_packets_total + 200..3000
absorbed_flap | device | 0.03 | 1 | 2 | absorbed_flap
few_lost_packets | device | 0.06 | 5 | 60 | rdma.packet_sequence_errors_total + 0.2..5
perftest | device | 0.04 | 5 | 30 | rdma.transmit_bytes_total * 1.2..2.0
links_save_power | task | 0.6 | 0 | 0 | links_save_power
hot_rack | rack | 0.3 | 0 | 0 | gpu.temperature_celsius + 3..11
hot_gpu | device | 0.3 | 0 | 0 | gpu.temperature_celsius + 3..11
slow_chip | device | 0.4 | 0 | 0 | gpu.sm_clock_hertz * 0.97..0.995, gpu.late * 1.005..1.03
memory_differs | device | 0.4 | 0 | 0 | gpu.memory_used_bytes + 4e8..3e9
other_limit | machine | 0.2 | 0 | 0 | gpu.power_watts * 0.92..0.97, gpu.sm_clock_hertz * 0.98..0.995, gpu.late * 1.005..1.03
new_kernel | rack | 0.2 | 0 | 0 | gpu.sm_active_ratio * 1.04..1.15
marked_port | device | 0.3 | 0 | 0 | rdma.cnp_sent_total * 3..30, rdma.ecn_marked_packets_total * 3..30
storage_port | device | 0.2 | 0 | 0 | rdma.receive_bytes_total + 5e8..3e9
noisy_cable | device | 0.3 | 0 | 0 | rdma.symbol_errors_total + 0.02..0.6
"""


def _effect(words: str) -> Callable[[Scene], None]:
    """One effect of a row."""
    if words in _ACTS:
        return _ACTS[words]
    key, sign, amounts = words.split()
    least, most = (float(number) for number in amounts.split(".."))
    table, _, metric = key.partition(".")
    if metric == "late":
        return partial(Scene.late, least=least, most=most, host=table == "host")
    return partial(Scene.add if sign == "+" else Scene.times, key=key, least=least, most=most)


def _kind(row: str) -> tuple[str, Kind]:
    name, scope, *numbers, effects = row.split(" | ")
    rate, least_s, most_s = (float(number) for number in numbers)
    return name, Kind(tuple(map(_effect, effects.split(", "))), scope, rate, least_s, most_s)


HARMLESS: Mapping[str, Kind] = dict(map(_kind, _ROWS.strip().splitlines()))
