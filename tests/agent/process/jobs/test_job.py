"""The columns of the table `job`: from cgroup, environment and the kubelet's files, also where those are hostile."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent.process.jobs.cgroup import Placement
from agent.process.jobs.job import MOST, clean, job_of, user_name
from agent.process.jobs.kubelet import LABELS, Kubelet, parse_labels

POD, ID = "7c9be21f-63d4-4f0a-8e17-2b5a90cc41d8", "a7" * 32
SLURM = {"SLURM_JOB_ID": "4711", "SLURM_JOB_NAME": "pretrain", "SLURM_JOB_USER": "anna", "SLURM_STEP_ID": "3"}


def kubelet(root: Path, labels: str = 'job-name="llama-8b"\nteam="vision"\n', kind: str = "downward-api") -> Kubelet:
    """The kubelet's files for one pod with two containers."""
    logs = root / "var/log"
    (logs / "pods" / f"ml_llama-worker-3_{POD}" / "trainer").mkdir(parents=True)
    (logs / "containers").mkdir()
    (logs / "containers" / f"llama-worker-3_ml_sidecar-{'b3' * 32}.log").symlink_to("/nowhere")
    (logs / "containers" / f"llama-worker-3_ml_trainer-{ID}.log").symlink_to("/nowhere")
    volume = root / "var/lib/kubelet/pods" / POD / "volumes" / f"kubernetes.io~{kind}" / "info"
    (volume / "..2026_11_22").mkdir(parents=True)
    (volume / "..2026_11_22" / "labels").write_text(labels)
    (volume / "..data").symlink_to("..2026_11_22")
    return Kubelet(root)


def test_slurm_by_cgroup_and_environment(tmp_path: Path) -> None:
    """The cgroup names job and step, the environment the job's name, the machine's own list the user."""
    found = job_of(Placement("4711", "2"), SLURM, "bert", Kubelet(tmp_path))
    assert found == {
        "scheduler": "slurm",
        "job_id": "4711",
        "job_name": "pretrain",
        "job_step": "2",
        "job_user": "bert",
        "job_origin": "cgroup",
    }


def test_slurm_by_environment_alone(tmp_path: Path) -> None:
    """Without Slurm's cgroups the environment is believed, and the row says so."""
    found = job_of(Placement(), SLURM | {"SLURM_STEP_ID": "4294967291"}, "", Kubelet(tmp_path))
    assert (found["job_id"], found["job_user"], found["job_step"]) == ("4711", "anna", "interactive")
    assert found["job_origin"] == "environment"


def test_an_environment_that_contradicts_the_cgroup_is_not_believed(tmp_path: Path) -> None:
    """A process that calls itself another job gets neither that job's number, nor its name or user."""
    found = job_of(Placement("93", "0"), SLURM, "", Kubelet(tmp_path))
    assert found == {"scheduler": "slurm", "job_id": "93", "job_step": "0", "job_origin": "cgroup"}


@pytest.mark.parametrize("kind", ["downward-api", "projected"])
def test_a_pod_by_the_kubelets_files(tmp_path: Path, kind: str) -> None:
    """Pod, namespace and container come from the names of log files, labels from the pod's own volume."""
    found = job_of(Placement("", "", POD, ID), {"HOSTNAME": "another"}, "root", kubelet(tmp_path, kind=kind))
    assert found == {
        "scheduler": "kubernetes",
        "namespace": "ml",
        "pod": "llama-worker-3",
        "container": "trainer",
        "labels": "job-name=llama-8b,team=vision",
        "job_name": "llama-8b",
        "job_origin": "cgroup",
    }


def test_a_pod_without_files(tmp_path: Path) -> None:
    """Where the kubelet's files are hidden the pod's own word counts, and last its identity."""
    said = {"POD_NAME": "llama-worker-5", "POD_NAMESPACE": "ml"}
    assert job_of(Placement("", "", POD), said, "", Kubelet(tmp_path))["pod"] == "llama-worker-5"
    assert job_of(Placement("", "", POD), {}, "", Kubelet(tmp_path))["pod"] == POD


def test_slurm_in_a_pod(tmp_path: Path) -> None:
    """Slurm inside of Kubernetes: the job is Slurm's, by the environment's word, and the pod stands beside it."""
    found = job_of(Placement("", "", POD, ID), SLURM, "", kubelet(tmp_path, labels=""))
    assert (found["scheduler"], found["job_id"], found["pod"]) == ("slurm", "4711", "llama-worker-3")
    assert found["job_origin"] == "environment"


def test_no_scheduler_no_row(tmp_path: Path) -> None:
    """A process of no scheduler has no columns, whatever host name it gives."""
    assert job_of(Placement(), {"HOSTNAME": "m07", "SLURM_JOB_ID": "1; rm"}, "carl", Kubelet(tmp_path)) == {}


def test_hostile_values_are_cut_and_cleaned(tmp_path: Path) -> None:
    """Escape codes, line breaks, marks that turn text around, and a megabyte come out as one short line."""
    name = "\x1b[31mpre\ntrain\u202e" + "x" * (1 << 20)
    found = job_of(Placement("4711"), SLURM | {"SLURM_JOB_NAME": name, "SLURM_STEP_ID": "\x07"}, "", Kubelet(tmp_path))
    assert found["job_name"].startswith("?[31mpre?train?xxx")
    assert len(found["job_name"]) == MOST
    assert "job_step" not in found
    assert clean("\x9b2J\udc80") == "?2J?"


def test_labels_are_bounded() -> None:
    """What the API server would refuse as a label is left out, and so are those beyond the first 32."""
    text = "\n".join(f'l{at:03}="v{at}"' for at in range(90)) + '\nbad="a\\nb"\nempty=""\n'
    assert len(parse_labels(text)) == LABELS
    assert parse_labels('bad="\x1b[0m"\nempty=""\nnone\n') == {"empty": ""}


@pytest.mark.parametrize("trap", ["link", "pipe", "folder", "outside"])
def test_a_pod_cannot_have_another_file_read(tmp_path: Path, trap: str) -> None:
    """A link, a pipe or a folder in place of the labels is not opened, nor is a version outside of the volume."""
    files = kubelet(tmp_path)
    volume = tmp_path / "var/lib/kubelet/pods" / POD / "volumes/kubernetes.io~downward-api/info"
    labels, secret = volume / "..2026_11_22" / "labels", tmp_path / "secret"
    secret.mkdir()
    (secret / "labels").write_text('job-name="stolen"\n')
    labels.unlink()
    if trap == "link":
        labels.symlink_to(secret / "labels")
    elif trap == "pipe":
        os.mkfifo(labels)
    elif trap == "folder":
        labels.mkdir()
    else:
        (volume / "..data").unlink()
        (volume / "..data").symlink_to(secret)
    assert files.labels(POD) == {}


def test_users_of_the_machine(tmp_path: Path) -> None:
    """A user's number has the name of the machine's list; a line of another form, or no list, gives none."""
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text("root:x:0:0::/:/bin/sh\nbroken\ndora:x:1042:1042::/home/dora:/bin/sh\n")
    assert (user_name(1042, tmp_path), user_name(7, tmp_path), user_name(7, tmp_path / "none")) == ("dora", "", "")
