"""What came before a process of a container or job step: when its cgroup was made, and what else ran in it first.

A cgroup's folder has the time at which the kernel made its inode: that of the mkdir, unless memory was short since and
the inode was dropped and made again. A time later than what must have followed it is therefore unknown. The kubelet
makes the pod's cgroup, then pulls the image, then has the container's cgroup made.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from agent.process.procfs import parse_stat

_LIMIT = 1 << 14
_ANCESTORS = 32
_TICKS = os.sysconf("SC_CLK_TCK")
_CONTAINER = re.compile(r"(.*?/[^/]*(?:[0-9a-f]{64}|job_\d+)[^/]*)(?:/|$)")
"""The cgroup of a container (containerd, CRI-O, Docker, Podman: its id), or of a Slurm job."""
_POD = re.compile(r"pod[0-9a-f_-]{8,}")
_ORDER = ("", "memory", "pids", "name=systemd")
"""Hierarchies in which a process is looked for: version 2, then those of version 1."""

COLUMNS = ("image_seconds", "container_seconds", "launch_seconds")


def before_start(proc: Path, root: Path, pid: int, boot: float) -> dict[str, float | None]:
    """Seconds of each phase before a process's start; empty outside of containers and job steps, None where unknown.

    `boot` is the Unix time at which the kernel's clock began. What is read is other users': bounded and checked.
    """
    try:
        home, folder = _container(proc, root, pid)
        if not home:
            return {}
        first, own = _begins(proc, pid, home)
        made = folder.stat().st_mtime
        pod = folder.parent.stat().st_mtime if _POD.search(folder.parent.name) else None
    except (OSError, ValueError):
        return {}
    image = None if pod is None else made - pod
    found = (image, boot + first / _TICKS - made, (own - first) / _TICKS)
    return {
        name: round(value, 3) if value is not None and value >= 0 else None
        for name, value in zip(COLUMNS, found, strict=True)
    }


def _container(proc: Path, root: Path, pid: int) -> tuple[str, Path]:
    """The cgroup path of a process's container, and its folder; empty where it is in none. Raises OSError."""
    with (proc / str(pid) / "cgroup").open("rb") as file:
        lines = file.read(_LIMIT).decode(errors="replace").splitlines()
    places = dict(line.split(":", 2)[1:] for line in lines if line.count(":") >= 2)
    for word in _ORDER:
        found = _CONTAINER.match(places.get(word, ""))
        if found and ".." not in found[1].split("/"):
            return found[1], root / "sys/fs/cgroup" / word.removeprefix("name=") / found[1].lstrip("/")
    return "", root


def _begins(proc: Path, pid: int, home: str) -> tuple[int, int]:
    """Clock ticks since boot at which the oldest ancestor in the container, and the process itself, started."""
    stat = (proc / str(pid) / "stat").read_bytes()[:_LIMIT]
    first = own = parse_stat(stat)[0]
    for _ in range(_ANCESTORS):
        pid = int(stat[stat.rfind(b")") + 1 :].split()[1])
        try:
            if pid <= 0 or home.encode() not in (proc / str(pid) / "cgroup").read_bytes()[:_LIMIT]:
                break
            stat = (proc / str(pid) / "stat").read_bytes()[:_LIMIT]
        except OSError:
            break  # the parent may have ended meanwhile
        first = min(first, parse_stat(stat)[0])
    return first, own
