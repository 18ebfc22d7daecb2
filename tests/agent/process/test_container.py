"""Phases before a process of a container: from the times of cgroups and of its ancestors."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent.process.container import before_start

BOOT = 1_780_000_000.0
TICKS = os.sysconf("SC_CLK_TCK")
POD = "/kubepods.slice/kubepods-pod5d1f7a9c_77aa.slice"
HOME = f"{POD}/cri-containerd-{'ab' * 32}.scope"


def process(proc: Path, pid: int, parent: int, start_s: float, cgroup: str) -> None:
    """A process as /proc shows it."""
    folder = proc / str(pid)
    folder.mkdir(parents=True)
    fields = ["S", str(parent), *["0"] * 17, str(round(start_s * TICKS)), "4096", *["0"] * 30]
    (folder / "stat").write_text(f"{pid} (a ) b) {' '.join(fields)}\n")
    (folder / "cgroup").write_text(f"0::{cgroup}\n")


def made(root: Path, cgroup: str, at: float) -> None:
    """A cgroup made so many seconds after the boot."""
    folder = root / "sys/fs/cgroup" / cgroup.lstrip("/")
    folder.mkdir(parents=True, exist_ok=True)
    os.utime(folder, (BOOT + at, BOOT + at))


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A pod at 100 s, its container at 163 s, its entry point at 164.5 s and the trainer at 230 s."""
    proc = tmp_path / "proc"
    process(proc, 1, 0, 0, "/init.scope")
    process(proc, 50, 1, 90, "/system.slice/containerd.service")
    process(proc, 60, 50, 164.5, HOME)
    process(proc, 61, 60, 170, HOME)
    process(proc, 62, 61, 230, f"{HOME}/inner")
    made(tmp_path, HOME, 163)
    made(tmp_path, POD, 100)
    return tmp_path


def test_every_phase_of_a_pod(machine: Path) -> None:
    """Image, container and launch are the times between pod, container, entry point and trainer."""
    found = before_start(machine / "proc", machine, 62, BOOT)
    assert found == {"image_seconds": 63.0, "container_seconds": 1.5, "launch_seconds": 65.5}


def test_a_time_that_cannot_be_is_unknown(machine: Path) -> None:
    """A cgroup with a time after the process's own start was read again: what hangs on it is null."""
    made(machine, HOME, 400)
    found = before_start(machine / "proc", machine, 62, BOOT)
    assert found == {"image_seconds": 300.0, "container_seconds": None, "launch_seconds": 65.5}
    made(machine, POD, 500)
    assert before_start(machine / "proc", machine, 62, BOOT)["image_seconds"] is None


@pytest.mark.parametrize("cgroup", ["/user.slice/session-3.scope", f"/../../{'cd' * 32}", "", f"{HOME}-gone"])
def test_outside_of_containers_nothing_is_said(machine: Path, cgroup: str) -> None:
    """A login session, a path that leaves the tree, none at all, and a cgroup that is gone give no phase."""
    process(machine / "proc", 70, 60, 240, cgroup)
    found = before_start(machine / "proc", machine, 70, BOOT)
    assert found == {}


def test_a_slurm_job(machine: Path) -> None:
    """A job of Slurm has no image, but a cgroup and a launcher."""
    job = "/system.slice/slurmstepd.scope/job_4711"
    process(machine / "proc", 80, 1, 300, f"{job}/step_0/user/task_0")
    process(machine / "proc", 81, 80, 312, f"{job}/step_0/user/task_0")
    made(machine, job, 298.25)
    found = before_start(machine / "proc", machine, 81, BOOT)
    assert found == {"image_seconds": None, "container_seconds": 1.75, "launch_seconds": 12.0}
