"""The paths of cgroups that Slurm and the kubelet make, and those that a user makes in their likeness."""

from __future__ import annotations

import pytest

from agent.process.jobs.cgroup import Placement, parse_cgroup

POD, ID = "5f1d3c7a-0b2e-4a91-9c55-d3e8a17b6f02", "4e" * 32
SLICE = POD.replace("-", "_")


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("/system.slice/slurmstepd.scope/job_4711/step_3/user/task_5", Placement("4711", "3")),
        ("/system.slice/slurmstepd.scope/job_4712", Placement("4712")),
        ("/system.slice/gpu07_slurmstepd.scope/job_81/step_batch/user/task_0", Placement("81", "batch")),
        ("/slurm/uid_1042/job_97/step_extern/task_6", Placement("97", "extern")),
        ("/slurm_gpu07/uid_1042/job_98/step_2", Placement("98", "2")),
        ("/../../system.slice/slurmstepd.scope/job_55/step_0", Placement("55", "0")),
        (f"/kubepods/burstable/pod{POD}/{ID}", Placement("", "", POD, ID)),
        (
            f"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{SLICE}.slice/cri-containerd-{ID}.scope",
            Placement("", "", POD, ID),
        ),
        (f"/kubepods.slice/kubepods-pod{SLICE}.slice/crio-{ID}.scope/nested", Placement("", "", POD, ID)),
        (
            f"/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{SLICE}.slice/cri-containerd-{ID}.scope",
            Placement("", "", POD, ID),
        ),
        (f"/../pod{POD}/{ID}", Placement()),
        ("/user.slice/user-1042.slice/user@1042.service/system.slice/slurmstepd.scope/job_6/step_0", Placement()),
        (f"/user.slice/user-1042.slice/kubepods/pod{POD}/{ID}", Placement()),
        ("/system.slice/cron.service/slurmstepd.scope/job_7", Placement()),
        ("/system.slice/slurmstepd.scope/job_8x/step_0", Placement()),
        ("/", Placement()),
    ],
)
def test_a_path_names_job_and_pod(path: str, wanted: Placement) -> None:
    """Each documented form of a path is understood, and one below a login session or a service is none."""
    assert parse_cgroup(f"0::{path}\n") == wanted


def test_hierarchies_of_version_1_are_put_together() -> None:
    """Of several hierarchies one may name the job alone and another the step."""
    text = (
        "9:cpuset:/slurm/uid_1042/job_97\n4:devices:/slurm/uid_1042/job_97/step_1/task_0\n1:name=systemd:/user.slice\n"
    )
    assert parse_cgroup(text) == Placement("97", "1")


def test_long_and_strange_text_ends_quickly() -> None:
    """A path made to slow the pattern down, and lines of another form, name nothing."""
    assert parse_cgroup("0::/" + "kubepods/" * 7000 + "x\n\0\n:::\n" + "/slurm" * 9000) == Placement()
