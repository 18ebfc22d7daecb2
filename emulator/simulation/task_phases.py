"""What happens to a healthy pretend task: checkpoints, evaluations, restarts, and harmless disturbances."""

from __future__ import annotations

import numpy as np

from emulator.simulation.fleet_model import Fleet, Mask, Place, Slow

_BURSTS = {
    "host.cpu_utilization_ratio": ("*", 2.5),
    "host.disk_read_bytes_total": ("*", 3.0),
    "host.network_receive_bytes_total": ("+", 2e8),
    "host.io_pressure_ratio": ("+", 0.25),
    "rdma.ecn_marked_packets_total": ("*", 6.0),
    "rdma.pfc_transmit_frames_total": ("+", 300.0),
    "gpu.power_watts": ("*", 0.8),
    "gpu.temperature_celsius": ("+", 12.0),
    "gpu.sm_clock_hertz": ("*", 0.9),
    "nccl.send_pending_ratio": ("+", 0.3),
}
"""One-off jumps that heal: cron jobs, copies, other tasks' traffic, misread sensors."""
_UNREAD = ("gpu.tensor_active_ratio", "host.cpu_pressure_ratio", "rdma.ecn_marked_packets_total")


def phases(f: Fleet) -> None:
    """A phase of the task itself: all ranks take part in it, so no machine is at fault."""
    total = f.seconds[-1]
    _checkpoints(f, f.rng.uniform(300, 900), f.rng.uniform(15, 40))
    if f.rng.random() < 0.6:
        _evaluations(f, f.rng.uniform(240, 700), f.rng.uniform(20, 60))
    if f.rng.random() < 0.2:
        begin = f.rng.uniform(0.1, 0.25) * total
        _restart(f, begin, f.rng.uniform(40, 90))


def _checkpoints(f: Fleet, every_s: float, last_s: float) -> None:
    """Each machine writes for a time of its own and then waits; the first one also writes what all have in common."""
    first = f.rng.uniform(0.3, 1) * every_s
    for begin in np.arange(first, f.seconds[-1], every_s):
        on = _during(f, begin, last_s)
        share = f.rng.uniform(0.6, 0.95, f.machines)
        share[0] = 1.0
        f.saving.append((on, share))
        f.alive = np.where(on, 0.0, f.alive)
        f.bend("host.disk_write_bytes_total", Place(on, None, None), "+", 8e8)
        f.bend("host.cpu_iowait_ratio", Place(on, None, None), "+", 0.1)
        f.bend("host.cpu_iowait_ratio", Place(on, 0, None), "+", 0.05)


def _evaluations(f: Fleet, every_s: float, last_s: float) -> None:
    """Forward passes only: the stages of the pipeline lose different shares of their work."""
    share = f.rng.uniform(0.5, 0.85, f.load.shape[1])
    for begin in np.arange(f.rng.uniform(0.3, 1) * every_s, f.seconds[-1], every_s):
        f.load[_during(f, begin, last_s)] = share


def shifts(f: Fleet) -> None:
    """Every few minutes another stage of the pipeline has less to do for a while, as where samples differ in length."""
    rng = np.random.default_rng([f.seed, f.stages])
    begin = rng.uniform(150, 200)
    while begin < f.seconds[-1] and f.stages > 1:
        last = rng.uniform(100, 200)
        f.load[_during(f, begin, last), rng.integers(f.stages)] *= rng.uniform(0.5, 0.7)
        begin += last + rng.uniform(20, 60)


def _restart(f: Fleet, begin: float, last_s: float) -> None:
    on = _during(f, begin, last_s)
    f.restarts.append(on)
    f.alive = np.where(on, 0.0, f.alive)
    for table in ("nccl", "cuda"):
        for machine in range(f.machines):
            here = on | _during(f, begin + last_s, f.rng.uniform(0, 12))
            f.gone.append((table, Place(here, machine, None)))


def disturbances(f: Fleet) -> None:
    """About ten harmless jumps in ten hours of a machine, short slowness, rows and readings that are missing."""
    hours = f.machines * f.seconds[-1] / 3600
    names = sorted(_BURSTS)
    for _ in range(f.rng.poisson(hours)):
        key = names[f.rng.integers(len(names))]
        f.bend(key, _somewhere(f, 5, 35, key.startswith("host")), *_BURSTS[key])
    for _ in range(f.rng.poisson(hours / 8)):
        f.slows.append(Slow(_somewhere(f, 4, 15, False), f.rng.uniform(1.1, 1.4), bool(f.rng.integers(2))))
    for _ in range(f.rng.poisson(hours / 4)):
        table = ("host", "gpu", "rdma", "nccl", "cuda", "")[f.rng.integers(6)]
        f.gone.append((table, _somewhere(f, 3, 18, True)))
    for key in _UNREAD:
        if f.rng.random() < 0.2:
            f.absent.append((key, int(f.rng.integers(f.machines))))


def _somewhere(f: Fleet, least_s: float, most_s: float, whole: bool) -> Place:
    on = _during(f, f.rng.uniform(0, f.seconds[-1]), f.rng.uniform(least_s, most_s))
    return Place(on, int(f.rng.integers(f.machines)), None if whole else int(f.rng.integers(f.gpus)))


def _during(f: Fleet, begin: float, last_s: float) -> Mask:
    on: Mask = (f.seconds >= begin) & (f.seconds < begin + max(last_s, f.step_s))
    return on
