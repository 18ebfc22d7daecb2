"""The scheduler's job of a machine or device, as verdicts and alerts carry it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from store.schema.job import JOB

_COPY = re.compile(r"(?:-[0-9]+)+(?:-[bcdf-hj-np-tv-xz2456789]{5})?$|-[bcdf-hj-np-tv-xz2456789]{5}$")
"""What controllers add to a job's name to name a pod: indices, and five random letters (no vowels) or digits."""


@dataclass(frozen=True, slots=True)
class Job:
    """One job; what is not known is empty. The fields are the columns of `store.schema.job`."""

    scheduler: str = ""
    job_id: str = ""
    job_name: str = ""
    job_step: str = ""
    job_user: str = ""
    namespace: str = ""
    pod: str = ""
    container: str = ""
    labels: str = ""
    job_origin: str = ""

    def as_json(self) -> dict[str, str]:
        """What is known."""
        return {name: value for name, value in asdict(self).items() if value}

    @property
    def sure(self) -> bool:
        """Whether `name` is the job's own: machines with the same work for one job."""
        return bool(self.job_id or self.job_name)

    @property
    def name(self) -> str:
        """The job in a few words: `pretrain (job 4711)`, `ml/llama`; without labels from the pod's name."""
        if self.job_id:
            return f"{self.job_name} (job {self.job_id})" if self.job_name else f"job {self.job_id}"
        name = self.job_name or _COPY.sub("", self.pod)
        return f"{self.namespace}/{name}" if self.namespace else name

    @property
    def words(self) -> str:
        """One line with all that people look for."""
        slurm = [f"step {self.job_step}" if self.job_step else "", f"user {self.job_user}" if self.job_user else ""]
        pod = f"{self.namespace}/{self.pod}" if self.namespace else self.pod
        pods = [f"pod {pod}" if pod else "", f"container {self.container}" if self.container else ""]
        kind = "Slurm" if self.scheduler == "slurm" else "Kubernetes"
        return ", ".join([f"{kind} {self.name}", *filter(None, [*slurm, *pods])])


def job_from(row: Mapping[str, Any]) -> Job | None:
    """The job in a row of the tables `job` or `verdict`; None where it names none."""
    found = Job(**{name: str(row.get(name) or "") for name in JOB})
    return found if found.scheduler else None
