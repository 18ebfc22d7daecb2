"""The source `job_log`: what jobs write of themselves, in logs, TensorBoard files and checkpoints."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from agent.config import AgentConfig, JobLogConfig
from agent.context import Context, SourceUnavailableError
from agent.process.job_logs.log_lines import check_pattern, read_line
from agent.process.job_logs.plain_files import PIECE, Follower, newest
from agent.sources.job_log import Jobs, open_source
from store.schema.sample import Sample
from tests.agent.process.job_logs.test_tensorboard import event, record
from tests.agent.sources.test_contract import check

SECOND = 10**9
NOW = 1_780_000_000 * SECOND


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A job's folder; pytest's is for its own user alone, so rights are tested elsewhere."""
    monkeypatch.setattr("agent.sources.job_log.unprivileged", nullcontext)
    return tmp_path


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that every user may enter."""
    path = Path(tempfile.mkdtemp(dir="/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def read(jobs: Jobs, after_s: float) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The row of the only job, and the events."""
    found = list(jobs.read(NOW + round(after_s * SECOND)))
    check(found)
    (row,) = [dict(one.values) for one in found if one.table == "job_log"]
    return row, [dict(one.values) for one in found if one.table == "event"]


def write(path: Path, *lines: str) -> None:
    """Add lines."""
    with path.open("a") as out:
        out.writelines(f"{line}\n" for line in lines)


@pytest.mark.parametrize(
    ("line", "values"),
    [
        (
            " iteration 120/500 | elapsed time per iteration (ms): 1532.5 | lm loss: 2.134567E+00 | grad norm: 1.250 |",
            {"step": 120, "loss": 2.134567, "gradient_norm": 1.25, "step_seconds": 1.5325},
        ),
        (
            "{'loss': 0.875, 'grad_norm': 3.5, 'learning_rate': 1e-05, 'epoch': 0.31}",
            {"loss": 0.875, "gradient_norm": 3.5},
        ),
        ("step=77 loss=nan step_time=0.75s", {"step": 77, "step_seconds": 0.75}),
        ("Epoch 3: global_step: 4096, train_loss: 1.5, iter_time: 12.5 ms", {"step": 4096, "loss": 1.5}),
        ("2026-05-01 12:00:01 saving checkpoint in 3 steps to /data/lossless", {}),
        ("", {}),
    ],
)
def test_usual_lines(line: str, values: dict[str, float]) -> None:
    """Lines as Megatron, Hugging Face and loops by hand write them."""
    found = read_line(line)
    assert {name: value for name, value in found.items() if value == value} == values
    assert ("loss" in found and found["loss"] != found["loss"]) == ("nan" in line)


def test_a_pattern_of_its_own() -> None:
    """A job's own pattern is used alone; one without the known groups is refused."""
    pattern = check_pattern(r"S(?P<step>\d+) L(?P<loss>\S+)")
    assert read_line("S13 L0.5 loss: 99", pattern) == {"step": 13.0, "loss": 0.5}
    assert read_line("S13 Loops", pattern) == {"step": 13.0}
    for wrong in ("(", "(?P<speed>.)", "loss"):
        with pytest.raises(ValueError, match=r"agent\.job_log\.pattern"):
            check_pattern(wrong)


def test_a_log_over_time(folder: Path) -> None:
    """Pace from the steps of two readings, MFU from FLOPs, a NaN and a spike as warnings that the detector notes."""
    log = folder / "train.log"
    write(log, *(f"step {n} loss: {2 + n / 100}" for n in range(30)))
    with log.open("a") as out:
        out.write("step 30 lo")
    config = JobLogConfig("pretrain", log=str(log), flops_per_step=3e15, gpus=8, peak_flops=5e14)
    jobs = Jobs((config,))
    row, events = read(jobs, 0)
    assert (row["job"], row["step"], row["loss"], events) == ("pretrain", 29.0, 2.29, [])
    assert "step_seconds" not in row
    assert [*jobs.read(NOW + 2 * SECOND)] == []  # not due
    with log.open("a") as out:
        out.write("ss: 2.5\nstep 31 loss: 2.25\n")
    row, events = read(jobs, 5)
    assert (row["step"], row["step_seconds"], row["mfu_ratio"]) == (31.0, 2.5, 0.3)
    write(log, "step 32 loss: nan", "step 33 loss: 11.75")
    row, events = read(jobs, 10)
    assert (row["nan_total"], row["loss"]) == (1, 11.75)
    assert [(one["code"], one["severity"]) for one in events] == [("loss_nan", "warn"), ("loss_spike", "warn")]
    assert events[1]["message"] == "pretrain's loss is 11.75, over 5 × the median of the last, 2.155"


def test_tensorboard_and_checkpoints(folder: Path) -> None:
    """Scalars with their own times, and the age of the newest checkpoint."""
    board = folder / "events.out.tfevents.77.m1"
    times = [NOW / SECOND - 30 + 4.5 * n for n in range(4)]
    for n, at in enumerate(times):
        with board.open("ab") as out:
            out.write(record(event("train/loss", 1.5 - n / 4, 10 * n, at)) + record(event("val/accuracy", 0.5, n, at)))
    saved = folder / "iter_0000020"
    saved.mkdir()
    os.utime(saved, (NOW / SECOND - 77, NOW / SECOND - 77))
    config = JobLogConfig("sft", tensorboard=f"{folder}/events.out.tfevents.*", checkpoints=f"{folder}/iter_*")
    row, events = read(Jobs((config,)), 0)
    assert (row["step"], row["loss"], row["step_seconds"], row["checkpoint_age_seconds"]) == (30.0, 0.75, 0.45, 77.0)
    assert (row["error"], events) == (None, [])


def test_files_that_grow_too_fast_rotate_or_end(folder: Path) -> None:
    """More than a piece is skipped and counted, a new file is read from its beginning, a cut one as well."""
    log = folder / "a.log"
    log.write_bytes(b"x" * 99 + b"\n")
    follower = Follower(f"{folder}/*.log", True)
    assert follower.read() == (b"x" * 99 + b"\n", "begins")
    with log.open("ab") as out:
        out.write(b"y" * (PIECE + 41))
    assert follower.read() == (b"y" * PIECE, "gap")
    assert follower.skipped == 41
    log.write_bytes(b"cut\n")
    assert follower.read() == (b"cut\n", "begins")
    other = folder / "b.log"
    other.write_bytes(b"new\n")
    os.utime(other, (2e9, 2e9))
    assert follower.read() == (b"new\n", "begins")


def test_links_are_not_followed(folder: Path) -> None:
    """A link in place of a log or of a folder, and a device, are refused; the row says why."""
    (folder / "secret").write_text("step 7 loss: 1.5\n")
    (folder / "link.log").symlink_to(folder / "secret")
    (folder / "way").symlink_to(folder)
    os.mkfifo(folder / "pipe.log")
    for path, said in (("link.log", "no file fits"), ("way/secret", "without links"), ("pipe.log", "no plain file")):
        row, _ = read(Jobs((JobLogConfig("j", log=f"{folder}/{path}"),)), 0)
        assert said in row["error"]
        assert "loss" not in row
    assert newest(f"{folder}/none*") is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can read every file in the first place")
def test_files_of_others_stay_theirs(public: Path) -> None:
    """The agent's right to read every file is not used: a log of its owner alone is refused, and the right is back."""
    log = public / "train.log"
    write(log, "step 3 loss: 0.5")
    log.chmod(0o600)
    config = JobLogConfig("j", log=str(log))
    assert "not readable for the agent's user" in read(Jobs((config,)), 0)[0]["error"]
    assert log.read_text()
    log.chmod(0o644)
    assert read(Jobs((config,)), 0)[0]["loss"] == 0.5


def test_settings_are_checked() -> None:
    """Jobs without the source, twice the same name, relative paths and empty jobs are refused."""
    one = JobLogConfig("a", log="/data/a.log")
    for wrong in ({"job_log": (one,)}, {"job_log": (one, one), "sources": ("host", "job_log")}):
        with pytest.raises(ValueError, match=r"agent\.job"):
            AgentConfig(**wrong)  # type: ignore[arg-type]
    for values in ({"log": "train.log"}, {"log": "/a/../etc/shadow"}, {}):
        with pytest.raises(ValueError, match=r"agent\.job"):
            JobLogConfig("a", **values)
    with pytest.raises(SourceUnavailableError, match="no job is configured"):
        open_source(Context(AgentConfig(sources=("host", "job_log"))))


def test_samples_are_of_their_table() -> None:
    """The source opens with a job and gives a row although no file is there."""
    source = open_source(
        Context(AgentConfig(sources=("job_log",), job_log=(JobLogConfig("a", log="/nonexistent/a.log"),)))
    )
    (row,) = source.read(NOW)
    assert isinstance(row, Sample)
    assert "/nonexistent" in str(row.values["error"])
    source.close()
