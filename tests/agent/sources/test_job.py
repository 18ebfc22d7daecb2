"""The source `job`: rows by GPU, on change and once a minute, from a real process's environment."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent.probes.training_processes import TrainingProcess
from agent.process.procfs import Process, Processes
from agent.sources.job import Job
from emulator.libraries.build import Libraries

SECOND = 10**9


def write(proc: Path, pid: int, environment: bytes, cgroup: str) -> None:
    """A process's files below a folder in the form of /proc."""
    (proc / str(pid)).mkdir(parents=True, exist_ok=True)
    (proc / str(pid) / "environ").write_bytes(environment)
    (proc / str(pid) / "cgroup").write_text(cgroup)
    (proc / str(pid) / "status").write_text("Name:\tx\nUid:\t1042\t1042\t1042\t1042\n")


def test_rows_by_gpu_on_change(tmp_path: Path) -> None:
    """Each GPU has the job of its oldest process; rows come again after a minute, or when another job has come."""
    cgroup = "0::/system.slice/slurmstepd.scope/job_{}/step_0/user/task_1\n"
    write(tmp_path, 31, b"SLURM_JOB_ID=61\0SECRET=1\0SLURM_JOB_NAME=tune\0", cgroup.format(61))
    write(tmp_path, 32, b"\xff\xfe\0SLURM_JOB_ID=9", cgroup.format(62))
    write(tmp_path, 33, b"", "0::/\n")
    living = {
        pid: TrainingProcess(Process(pid, start), gpu) for pid, start, gpu in ((31, 5, "0"), (32, 4, "1"), (33, 3, "2"))
    }
    training: Any = SimpleNamespace(living=lambda _: living)
    source = Job(training, Processes(tmp_path), tmp_path)
    rows = {str(sample.values["gpu"]): sample.values for sample in source.read(SECOND)}
    assert {gpu: row["job_id"] for gpu, row in rows.items()} == {"0": "61", "1": "62"}
    assert rows["0"]["job_name"] == "tune"
    assert not any("SECRET" in str(value) for row in rows.values() for value in row.values())
    assert source.read(2 * SECOND) == []
    assert len(source.read(62 * SECOND)) == 2
    write(tmp_path, 31, b"", cgroup.format(63))
    living[31] = TrainingProcess(Process(31, 900), "0")
    assert [sample.values["job_id"] for sample in source.read(63 * SECOND)] == ["63"]
    assert source.read(64 * SECOND) == []


@pytest.mark.bpf
def test_a_real_process_of_slurm(watch: Any, caller: Any, emulated: Libraries, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that Slurm started, as its environment says, is seen with its job while it calls NCCL."""
    monkeypatch.setenv("SLURM_JOB_ID", "7313")
    monkeypatch.setenv("SLURM_JOB_NAME", "\x1b[2Jnight run")
    seen, process = watch(), caller(emulated.cudart, emulated.nccl)
    seen.wait_attached(emulated.nccl)
    process.call()
    (row,) = seen.until(lambda rows: rows.get("job"))
    assert (row["scheduler"], row["job_id"], row["job_name"]) == ("slurm", "7313", "?[2Jnight run")


def test_the_environment_is_read_as_the_process_was_started() -> None:
    """Of a living process only the named variables come back."""
    environment = {"SLURM_JOB_ID": "17", "API_TOKEN": "hush", "PATH": os.environ["PATH"]}
    with subprocess.Popen(["sleep", "60"], env=environment) as process:
        while b"sleep" not in Path(f"/proc/{process.pid}/cmdline").read_bytes():  # before its exec it is this program
            time.sleep(0.01)
        found = Processes().variables(process.pid, frozenset(("SLURM_JOB_ID", "SLURM_JOB_NAME")))
        process.kill()
    assert found == {"SLURM_JOB_ID": "17"}
