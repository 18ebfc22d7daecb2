"""The columns that say which job of a scheduler a process belongs to: in the table `job`, in verdicts and in alerts."""

from __future__ import annotations

JOB: dict[str, str] = {
    "scheduler": "slurm or kubernetes",
    "job_id": "Slurm's number of the job",
    "job_name": "name of the job: Slurm's, or that of a label of the pod",
    "job_step": "Slurm's step: a number, batch, interactive or extern",
    "job_user": "the user who submitted it, of Slurm",
    "namespace": "namespace of the pod",
    "pod": "name of the pod",
    "container": "name of the container in the pod",
    "labels": "labels of the pod as key=value, separated by commas, where a volume of the pod shows them",
    "job_origin": "cgroup (the scheduler's own, which a process cannot change) or environment (the process's word)",
}
"""Column -> what it holds."""
