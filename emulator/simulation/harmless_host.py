"""Harmless things of hosts and of the task: a small function and a row of the table each.

Ideas: operators' reports of Minder, ByteRobust, Falcon and Llama 3.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from emulator.simulation.scene import Kind, Scene


def _cron_job(s: Scene) -> None:
    s.add("host.cpu_utilization_ratio", 0.05, 0.4)
    s.add("host.processes_running", 4, 40)
    s.times("host.context_switches_total", 1.1, 1.8)


def _log_rotation(s: Scene) -> None:
    s.add("host.disk_write_bytes_total", 8e7, 7e8)
    s.add("host.cpu_iowait_ratio", 0.005, 0.04)


def _package_upgrade(s: Scene) -> None:
    s.add("host.cpu_utilization_ratio", 0.05, 0.3)
    s.add("host.disk_write_bytes_total", 5e7, 4e8)
    s.add("host.processes_running", 3, 25)


def _backup(s: Scene) -> None:
    s.add("host.disk_read_bytes_total", 1e8, 9e8)
    s.add("host.network_transmit_bytes_total", 5e7, 6e8)


def _image_pull(s: Scene) -> None:
    s.add("host.network_receive_bytes_total", 1e8, 9e8)
    s.add("host.disk_write_bytes_total", 1e8, 8e8)


def _user_process(s: Scene) -> None:
    s.add("host.cpu_utilization_ratio", 0.02, 0.2)
    s.add("host.memory_utilization_ratio", 0.01, 0.1)
    s.add("host.processes_running", 1, 9)


def _memory_compaction(s: Scene) -> None:
    s.add("host.cpu_system_ratio", 0.03, 0.15)


def _file_cache(s: Scene) -> None:
    s.add("host.memory_utilization_ratio", 0.03, 0.25)


def _brief_contention(s: Scene) -> None:
    s.add("host.cpu_pressure_ratio", 0.1, 0.4)
    s.late(1.02, 1.15)


def _agent_restart(s: Scene) -> None:
    s.fleet.gone.append(("", s.place(True)))


def _source_stalls(s: Scene) -> None:
    s.fleet.gone.append((str(s.rng.choice(["host", "gpu", "rdma", "cuda"])), s.place(True)))


def _collection_pause(s: Scene) -> None:
    s.add("cuda.gc_seconds_total", 0.05, 0.4)
    s.late(1.05, 1.4)


def _traced_rank(s: Scene) -> None:
    s.add("host.disk_write_bytes_total", 2e7, 2e8)
    s.late(1.005, 1.04)


def _upload(s: Scene) -> None:
    s.add("host.network_transmit_bytes_total", 5e7, 5e8)


def _data_stall(s: Scene) -> None:
    s.fleet.alive = np.where(s.on, 0.0, s.fleet.alive)
    s.add("host.io_pressure_ratio", 0.05, 0.3)


def _load_changes(s: Scene) -> None:
    s.fleet.load[s.on] *= s.rng.uniform(0.75, 0.97)


def _head_node(s: Scene) -> None:
    s.add("host.cpu_utilization_ratio", 0.02, 0.15)
    s.add("host.network_receive_bytes_total", 2e6, 4e7)


def _uneven_numa(s: Scene) -> None:
    s.add("host.cpu_system_ratio", 0.01, 0.06)
    s.times("host.context_switches_total", 1.1, 1.5)


def _raid_check(s: Scene) -> None:
    s.add("host.disk_read_bytes_total", 1e8, 4e8)


def _dirty_link(s: Scene) -> None:
    s.add("host.tcp_retransmit_segments_total", 1, 25)


OF_HOSTS: Mapping[str, Kind] = {
    "cron_job": Kind(_cron_job, "machine", 0.25, 3, 60),
    "log_rotation": Kind(_log_rotation, "machine", 0.12, 5, 90),
    "package_upgrade": Kind(_package_upgrade, "machine", 0.05, 60, 420),
    "backup": Kind(_backup, "machine", 0.04, 180, 1200),
    "image_pull": Kind(_image_pull, "machine", 0.05, 30, 400),
    "user_process": Kind(_user_process, "machine", 0.05, 60, 1200),
    "memory_compaction": Kind(_memory_compaction, "machine", 0.06, 4, 70),
    "file_cache": Kind(_file_cache, "machine", 0.06, 120, 900),
    "brief_contention": Kind(_brief_contention, "machine", 0.05, 4, 45),
    "agent_restart": Kind(_agent_restart, "machine", 0.05, 3, 150),
    "source_stalls": Kind(_source_stalls, "machine", 0.05, 15, 200),
    "collection_pause": Kind(_collection_pause, "device", 0.08, 1, 4),
    "traced_rank": Kind(_traced_rank, "device", 0.04, 20, 45),
    "upload": Kind(_upload, "machine", 0.06, 60, 400),
    "data_stall": Kind(_data_stall, "task", 0.6, 3, 25),
    "load_changes": Kind(_load_changes, "task", 0.5, 200, 1500),
    "head_node": Kind(_head_node, "machine", 0.4, 0, 0),
    "uneven_numa": Kind(_uneven_numa, "machine", 0.2, 0, 0),
    "raid_check": Kind(_raid_check, "machine", 0.1, 0, 0),
    "dirty_link": Kind(_dirty_link, "machine", 0.2, 0, 0),
}
