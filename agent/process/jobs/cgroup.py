"""What the path of a process's cgroup says: Slurm's job and step, the pod's and the container's identity.

A process cannot leave the cgroup that its scheduler made, but may make further ones below it, or below its own login
session, and call them anything. So the scheduler's folders are looked for from the root, in their documented form.
https://slurm.schedmd.com/cgroup_v2.html, https://kubernetes.io/docs/concepts/architecture/cgroups/
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_UP = r"(?:/\.\.)*"  # an agent in a cgroup namespace of its own sees others from there
_SLURM = re.compile(
    rf"{_UP}/(?:system\.slice/)?(?:[\w-]{{1,64}}_)?slurm(?:stepd\.scope|_[\w-]{{1,64}})?"
    r"/(?:uid_[0-9]{1,10}/)?job_([0-9]{1,10})(?:/step_([a-z0-9_]{1,32}))?(?:/|$)"
)
_UID = r"[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32}"
_POD = re.compile(
    rf"{_UP}/(?:[\w.-]{{1,64}}/){{0,3}}?(?:kubelet-)?kubepods(?:[\w.-]{{0,64}}/){{1,3}}?"
    rf"(?:[\w-]{{1,64}}-)?pod({_UID})(?:\.slice)?(?:/(?:[a-z-]{{1,32}}-)?([0-9a-f]{{64}})(?:\.scope)?)?(?:/|$)"
)
_LOGIN = re.compile(rf"{_UP}/user\.slice/")


@dataclass(frozen=True, slots=True)
class Placement:
    """Where schedulers have put a process; empty where they have not."""

    job: str = ""
    step: str = ""
    pod_uid: str = ""
    """In the API server's form, with dashes."""
    container_id: str = ""


def parse_cgroup(text: str) -> Placement:
    """The placement in the text of /proc/PID/cgroup (cgroups(7)): one line a hierarchy, the path behind two colons."""
    job = step = pod = container = ""
    for line in text.splitlines():
        path = line.split(":", 2)[-1]
        if _LOGIN.match(path):
            continue
        if found := _SLURM.match(path):
            job, step = found[1], found[2] or step
        if found := _POD.match(path):
            pod, container = found[1].replace("_", "-"), found[2] or container
    return Placement(job, step, pod, container)
