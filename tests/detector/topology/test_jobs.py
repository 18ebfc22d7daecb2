"""The scheduler's jobs name tasks, and verdicts and alerts carry them."""

from __future__ import annotations

import json

import pyarrow as pa

from detector.alerts.alert import IncidentTracker
from detector.alerts.forms import FORMS
from detector.alerts.text import details
from detector.model.job import Job, job_from
from detector.model.verdict import Verdict
from detector.model.verdict_rows import batch_of, verdict_of
from detector.timeseries.rows import rows_of
from detector.topology.jobs import FRESH_NS
from detector.topology.tasks import EVERYBODY, Tasks

SECOND = 10**9
SLURM = {"scheduler": "slurm", "job_id": "4711", "job_name": "pretrain", "job_user": "anna", "job_step": "2"}


def feed(tasks: Tasks, table: str, rows: list[dict[str, object]]) -> None:
    """Rows of one table, in order of time."""
    tasks.feed(rows_of(table, pa.Table.from_pylist(rows)))


def job(machine: str, gpu: int = 0, time: int = 7 * SECOND, **values: str) -> dict[str, object]:
    """A row of the table `job`."""
    return {"time": time, "machine": machine, "gpu": str(gpu), **(values or SLURM)}


def joined(comm: str, *machines: str) -> list[dict[str, object]]:
    """A communicator of these machines."""
    return [{"time": 5 * SECOND, "machine": name, "gpu": "0", "slot": "0", "comm": comm} for name in machines]


def names(tasks: Tasks) -> dict[str, str | None]:
    """The task of each machine."""
    return {machine: tasks.task_of(machine) for machine in sorted(tasks.seen)}


def test_a_task_is_called_after_its_job() -> None:
    """Machines that share communicators are a task by the name of their job, also one that was not read as such."""
    tasks = Tasks()
    feed(tasks, "nccl", joined("c1", *"abcde"))
    assert set(names(tasks).values()) == {"task of a"}
    feed(tasks, "job", [job(name) for name in "abcdx"])
    assert set(names(tasks).values()) == {"pretrain (job 4711)"}
    assert tasks.task_of("x") == "pretrain (job 4711)"


def test_two_trainings_of_one_job_stay_two_tasks() -> None:
    """A job with two trainings side by side has two tasks: the machines that share communicators are peers."""
    tasks = Tasks()
    feed(tasks, "nccl", joined("c1", *"abcd") + joined("c2", *"efgh"))
    feed(tasks, "job", [job(name) for name in "abcdefgh"])
    assert tasks.task_of("b") == "pretrain (job 4711) of a"
    assert tasks.task_of("h") == "pretrain (job 4711) of e"


def test_without_communicators_a_large_job_is_a_task() -> None:
    """Four machines of one job are a task; smaller jobs are compared with all the others, as before."""
    tasks = Tasks()
    feed(tasks, "host", [{"time": SECOND, "machine": name, "x": 1.5} for name in "abcdefg"])
    feed(tasks, "job", [job(name) for name in "abcd"] + [job("e", scheduler="slurm", job_id="4712")])
    assert tasks.task_of("c") == "pretrain (job 4711)"
    assert {tasks.task_of(name) for name in "efg"} == {EVERYBODY}


def test_the_table_task_outweighs_jobs() -> None:
    """The table `task` decides which task a machine works for, where it has the machine."""
    tasks = Tasks()
    feed(tasks, "job", [job(name) for name in "abcd"])
    feed(tasks, "task", [{"time": SECOND, "machine": name, "task": "night"} for name in "abcd"])
    assert set(names(tasks).values()) == {"night"}


def test_the_job_of_a_machine_is_that_of_most_gpus() -> None:
    """GPUs have jobs of their own; a GPU that its agent stops naming has none."""
    tasks = Tasks()
    other = {"scheduler": "slurm", "job_id": "4712"}
    feed(tasks, "job", [job("a", 0), job("a", 1), job("a", 2, **other)])
    found = tasks.jobs.of("a"), tasks.jobs.of("a", "gpu:2"), tasks.jobs.of("a", "rdma:mlx5_0/1"), tasks.jobs.of("b")
    assert [one and one.job_id for one in found] == ["4711", "4712", "4711", None]
    feed(tasks, "job", [job("a", 2, 8 * SECOND + FRESH_NS, **other)])
    assert tasks.jobs.of("a") == Job("slurm", "4712")


def test_names_of_pods() -> None:
    """A pod without labels lends its name without index and random letters, one with labels has the job's."""
    pod = {"scheduler": "kubernetes", "namespace": "ml"}
    stems = [Job(**pod, pod=name).name for name in ("llama-worker-13", "llama-2-x7k4q", "eval-x7k4q", "my-train")]
    assert stems == ["ml/llama-worker", "ml/llama", "ml/eval", "ml/my-train"]
    assert Job(**pod, pod="llama-worker-13", job_name="llama").name == "ml/llama"
    assert Job(**pod, pod="llama-worker-13", container="main").words == (
        "Kubernetes ml/llama-worker, pod ml/llama-worker-13, container main"
    )
    assert Job(**SLURM).words == "Slurm pretrain (job 4711), step 2, user anna"
    assert job_from({"machine": "a", "job_id": None}) is None


def test_verdicts_and_alerts_carry_the_job() -> None:
    """A verdict's row brings its job back; an alert has it in its text, and as labels that stay when the job ends."""
    verdict = Verdict(
        9 * SECOND, "pretrain (job 4711)", "a", "gpu:1", "peer", "gpu.x", 3.5, SECOND, "warn", "a is slow"
    )
    tasks = Tasks()
    feed(tasks, "job", [job("a", 1)])
    (named,) = tasks.jobs.named([verdict])
    batch = batch_of(named)
    (sample,) = batch.samples
    assert verdict_of({"time": batch.time, "machine": "a", **sample.values}) == named
    assert named.as_json()["job"] == SLURM
    assert "job" not in verdict.as_json()
    tracker = IncidentTracker()
    tracker.record(named)
    alert = tracker.record(
        Verdict(*(10 * SECOND, verdict.task, "a", None, "peer", "gpu.x", 4.5, SECOND), "crit", "worse")
    )
    assert alert is not None
    assert alert.as_json()["job"] == SLURM
    assert "job: Slurm pretrain (job 4711), step 2, user anna" in details(alert)
    (posted, _) = json.loads(json.dumps(FORMS["alertmanager"](alert, 11 * SECOND, 99 * SECOND)))
    assert {key: posted["labels"][key] for key in ("job_id", "job_name", "job_user")} == {
        key: SLURM[key] for key in ("job_id", "job_name", "job_user")
    }
