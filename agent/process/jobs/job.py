"""The job of one process: from its cgroup, its environment and the kubelet's files. All values are bounded and cleaned.

Of the environment, which the process itself controls, only the variables in VARIABLES are looked at, and they are
believed only where the cgroup does not contradict them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from agent.process.jobs.cgroup import Placement
from agent.process.jobs.kubelet import Kubelet

VARIABLES = frozenset(
    (
        *("SLURM_JOB_ID", "SLURM_JOBID", "SLURM_JOB_NAME", "SLURM_JOB_USER", "SLURM_STEP_ID", "SLURM_STEPID"),
        *("POD_NAME", "POD_NAMESPACE", "HOSTNAME"),
    )
)
"""https://slurm.schedmd.com/sbatch.html; POD_NAME and POD_NAMESPACE are the downward API's usual names."""
JOB_LABELS = (
    "training.kubeflow.org/job-name",
    "jobset.sigs.k8s.io/jobset-name",
    "volcano.sh/job-name",
    "leaderworkerset.sigs.k8s.io/name",
    "ray.io/cluster",
    "batch.kubernetes.io/job-name",
    "job-name",
)
"""Labels by which controllers name the job of a pod, the most specific first."""
MOST, MOST_LABELS = 128, 512
"""Characters of a value."""
_PASSWD_BYTES = 1 << 20
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff\ufffd\ud800-\udfff]")
_STEPS = {"4294967291": "interactive", "4294967292": "extern", "4294967293": "batch", "4294967294": "batch"}
"""Slurm's reserved step numbers (slurm.h, SLURM_BATCH_SCRIPT and its neighbours)."""


def clean(text: str, most: int = MOST) -> str:
    """A value of somebody else's as one line without control characters, cut to `most` characters."""
    text = _CONTROL.sub("?", text[: most + 1]).strip()
    return text if len(text) <= most else f"{text[: most - 1]}…"


def job_of(placement: Placement, variables: Mapping[str, str], user: str, kubelet: Kubelet) -> dict[str, str]:
    """The columns of the table `job`; empty for a process of no scheduler. `user` is its owner's name, if known."""
    row = _slurm(placement, variables, user) | _pod(placement, variables, kubelet)
    if not row:
        return {}
    sure = placement.job or (placement.pod_uid and "job_id" not in row)
    row["scheduler"] = "slurm" if "job_id" in row else "kubernetes"
    row["job_origin"] = "cgroup" if sure else "environment"
    return {name: clean(value, MOST_LABELS if name == "labels" else MOST) for name, value in row.items() if value}


def _slurm(placement: Placement, variables: Mapping[str, str], user: str) -> dict[str, str]:
    said = variables.get("SLURM_JOB_ID") or variables.get("SLURM_JOBID") or ""
    job = placement.job or (said if re.fullmatch(r"[0-9]{1,10}", said) else "")
    if not job:
        return {}
    step, name = placement.step, ""
    if said == job:
        name, user = variables.get("SLURM_JOB_NAME", ""), user or variables.get("SLURM_JOB_USER", "")
        step = step or variables.get("SLURM_STEP_ID") or variables.get("SLURM_STEPID") or ""
    step = _STEPS.get(step, step)
    known = step if re.fullmatch(r"[a-z0-9_]{1,32}", step) else ""
    return {"job_id": job, "job_name": name, "job_step": known, "job_user": user}


def _pod(placement: Placement, variables: Mapping[str, str], kubelet: Kubelet) -> dict[str, str]:
    if not placement.pod_uid:
        return {}
    names = kubelet.names(placement.pod_uid, placement.container_id)
    if not names:  # the files are hidden from us: the pod's own word
        pod = variables.get("POD_NAME") or variables.get("HOSTNAME", "")
        names = {"namespace": variables.get("POD_NAMESPACE", ""), "pod": pod or placement.pod_uid}
    labels = kubelet.labels(placement.pod_uid)
    row = {**names, "labels": ",".join(f"{key}={value}" for key, value in labels.items())}
    job = next((labels[key] for key in JOB_LABELS if labels.get(key)), "")
    return row | ({"job_name": job} if job else {})


@lru_cache(maxsize=256)
def user_name(user: int, root: Path) -> str:
    """The name of a user in the machine's own list; empty where it is not there. Directory services are not asked."""
    try:
        with (root / "etc/passwd").open("rb") as file:
            text = file.read(_PASSWD_BYTES).decode(errors="replace")
    except OSError:
        return ""
    fields = (line.split(":") for line in text.splitlines())
    return next((name for name, _, number, *_ in (f for f in fields if len(f) >= 3) if number == str(user)), "")
