"""What jobs write of themselves: step, loss and pace from logs or TensorBoard files; age of checkpoints; MFU.

Opt-in: `job_log` in `agent.sources` and a table `[[agent.job_log]]` a job. Nothing in the job changes.
"""

from __future__ import annotations

from agent.config import JobLogConfig
from agent.context import Context, SourceUnavailableError
from agent.process.job_logs.log_lines import LONGEST, check_pattern, read_line
from agent.process.job_logs.plain_files import Follower, newest
from agent.process.job_logs.signals import Signals, name_of
from agent.process.job_logs.tensorboard import EventReader
from agent.system.events import Event, Repeats, samples
from agent.system.rights import unprivileged
from store.schema.sample import Sample, Value
from store.schema.time import SECOND

_NEWS_S = 600.0
"""A NaN or a spike that was written longer ago is no event."""
_LINES = 2000
"""Lines of one reading that are looked at, the newest."""


class Job:
    """One job: a row a reading, every `every_seconds`."""

    def __init__(self, config: JobLogConfig) -> None:
        self._config = config
        peak = config.gpus * config.peak_flops
        self._signals = Signals(config.flops_per_step / peak if peak else 0.0)
        self._pattern = check_pattern(config.pattern)
        self._log = Follower(config.log, True) if config.log else None
        self._board = Follower(config.tensorboard, False) if config.tensorboard else None
        self._reader, self._rest = EventReader(), b""
        self._age: float | None = None
        self._due = 0

    def read(self, now: int) -> tuple[list[Sample], list[Event]]:
        """A row, and what is odd, at `now` (Unix ns); nothing before it is due."""
        if 0 < self._due - now <= self._config.every_seconds * SECOND:
            return [], []
        self._due = now + round(self._config.every_seconds * SECOND)
        errors, config = list[str](), self._config
        parts = (config.log, self._read_log), (config.tensorboard, self._read_board), (config.checkpoints, self._date)
        for path, part in parts:
            try:
                part(now)
            except (OSError, ValueError) as error:
                errors.append(f"{path}: {_words(error)}")
        skipped = self._log.skipped if self._log else 0
        row: dict[str, Value] = {"job": self._config.name, **self._signals.row(), "checkpoint_age_seconds": self._age}
        row |= {"skipped_bytes_total": skipped, "error": "; ".join(errors) or None}
        events, self._signals.events = self._signals.events, []
        return [Sample("job_log", row)], [self._named(event) for event in events]

    def _named(self, event: Event) -> Event:
        return Event(event.code, event.device, event.severity, event.message.replace("the job", self._config.name, 1))

    def _read_log(self, now: int) -> None:
        if self._log is None:
            return
        piece, place = self._log.read()
        lines = ((self._rest if place == "follows" else b"") + piece).split(b"\n")
        del lines[: place == "gap"]  # cut at its beginning
        self._rest = lines.pop()[-LONGEST:] if lines else b""
        found = [read_line(line.decode(errors="replace"), self._pattern) for line in lines[-_LINES:]]
        last = max((at for at, values in enumerate(found) if "step" in values), default=-1)
        for at, values in enumerate(found):
            if at != last:  # lines are not dated: the pace is that of the last step of each reading
                values.pop("step", None)
            self._signals.feed(values, now / SECOND, place == "follows")

    def _read_board(self, now: int) -> None:
        if self._board is None:
            return
        piece, place = self._board.read()
        if place != "follows":
            self._reader.restart()
        for scalar in self._reader.feed(piece):
            if name := name_of(scalar.tag):
                fresh = now / SECOND - scalar.time < _NEWS_S
                self._signals.feed({name: scalar.value, "step": float(scalar.step)}, scalar.time, fresh)

    def _date(self, now: int) -> None:
        self._age = None
        if self._config.checkpoints and (found := newest(self._config.checkpoints)):
            self._age = max(0.0, now / SECOND - found[1].st_mtime)


class Jobs:
    """All configured jobs of this machine."""

    def __init__(self, configs: tuple[JobLogConfig, ...]) -> None:
        self._jobs = [Job(config) for config in configs]
        self._repeats = {config.name: Repeats() for config in configs}

    def read(self, now: int) -> list[Sample]:
        """Rows and events of the jobs that are due; files are read without the rights of the agent."""
        rows, events = list[Sample](), list[Event]()
        with unprivileged():
            for job, repeats in zip(self._jobs, self._repeats.values(), strict=True):
                found, odd = job.read(now)
                rows += found
                events += [event for event in odd if repeats.admit(now, event)] + repeats.due(now)
        return rows + samples("job_log", now, events)

    def close(self) -> None:
        """Nothing is open between readings."""


def open_source(context: Context) -> Jobs:
    """The source, ready to read. Raises SourceUnavailableError where no job is configured."""
    if not context.config.job_log:
        raise SourceUnavailableError("no job is configured: add a table [[agent.job_log]] with a name and files")
    return Jobs(context.config.job_log)


def _words(error: OSError | ValueError) -> str:
    if isinstance(error, PermissionError):
        return "not readable for the agent's user: setfacl -m u:peerwatch:r, or chmod o+r"
    return str(error.strerror) if isinstance(error, OSError) else str(error)
