"""A program as a sink: it drains a machine or returns it to service, within limits on rate and share of the fleet.

Each run is written to a file before it starts, so that the limits hold after a crash of the detector.
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from detector.alerts.alert import BLIND, Alert, RefusedError, RetryLaterError, Sink
from detector.model.verdict import Level

log = logging.getLogger(__name__)

HOUR_NS = 3600 * 10**9
ATTEMPTS = 3
"""Most attempts for one incident while the program fails."""
_OUTPUT_BYTES = 2000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""Names that are passed to the program: no option, no pattern (Slurm's m[1-9]), not several names."""
_PLACES = re.compile(r"\{(machine|incident|level)\}")


class CommandConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the sink `command`. Raises ValueError for an invalid value."""

    run: tuple[str, ...] = ()
    """The program and its arguments; {machine}, {incident} and {level} are filled in. There is no shell."""
    dry_run: bool = True
    """Only log what would be run."""
    levels: tuple[Level, ...] = ("crit",)
    """Levels at which it runs; ok: at the end of the incident."""
    timeout_seconds: Annotated[float, Meta(ge=0.1, le=3600.0)] = 30.0
    """It is killed after so many seconds, with its child processes."""
    most_per_hour: Annotated[int, Meta(ge=1, le=10000)] = 4
    """Most runs at level warn or crit within an hour."""
    most_share: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.1
    """Largest share of the machines that may be taken out at once."""
    hold_seconds: Annotated[float, Meta(ge=60.0, le=1e8)] = 86400.0
    """Seconds for which a machine counts as taken out, unless the program ran for it at level ok before."""


class Run(msgspec.Struct):
    """One run: time (Unix ns), machine, incident, level, and whether it succeeded."""

    time: int
    machine: str
    incident: str
    level: Level
    dry: bool
    done: bool = False


class Command(Sink):
    """Runs the operator's program; `file` records the runs, `clock` returns Unix ns."""

    def __init__(self, config: CommandConfig, file: Path, clock: Callable[[], int]) -> None:
        if not config.run:
            raise ValueError("alerts.command names no program: set alerts.command.run, a list of program and arguments")
        self.config, self.file, self.clock = config, file, clock
        self.runs: list[Run] = self._known()

    def send(self, alert: Alert) -> str:
        """Run it for this machine within the limits. Raises RefusedError beyond them, RetryLaterError on failure."""
        level = alert.verdict.level
        mine = self._since_turn(alert.incident, level)
        if alert.verdict.kind == BLIND or level not in self.config.levels or any(run.done for run in mine):
            return "nothing to run"
        words = self._words(alert)
        if len(mine) >= ATTEMPTS:
            raise RefusedError(f"{words[0]} has failed {ATTEMPTS} times for {alert.verdict.machine}: skipped")
        self._check(alert)
        now = self.clock()
        run = Run(now, alert.verdict.machine, alert.incident, level, self._dry)
        keep = max(HOUR_NS, self._hold_ns)
        self.runs = [*(old for old in self.runs if old.time > now - keep), run]
        self._save()
        if not self._dry:
            self._run(words, alert)
        run.done = True
        self._save()
        if self._dry:
            log.warning("dry run, so not run: %s", words)
            return f"dry run, so not run: {words}"
        return f"ran {words}"

    def test(self, alert: Alert) -> str:
        """Return what would be run, without running it."""
        return f"not run, being a test: {self._words(alert)}"

    def _since_turn(self, incident: str, level: Level) -> list[Run]:
        """Runs at this level for this incident since it last became worse or ended."""
        mine = [run for run in self.runs if (run.incident, run.dry) == (incident, self._dry)]
        turns = [at for at, run in enumerate(mine) if (run.level == "ok") != (level == "ok")]
        return [run for run in mine[turns[-1] + 1 if turns else 0 :] if run.level == level]

    @property
    def _dry(self) -> bool:
        return self.config.dry_run

    @property
    def _hold_ns(self) -> int:
        return round(self.config.hold_seconds * 1e9)

    def _words(self, alert: Alert) -> list[str]:
        machine = alert.verdict.machine
        if not _NAME.fullmatch(machine):
            raise RefusedError(f"{machine[:80]!r} is not a name that may be passed to a program")
        values = {"machine": machine, "incident": alert.incident, "level": alert.verdict.level}
        return [_PLACES.sub(lambda found: values[found[1]], word) for word in self.config.run]

    def _check(self, alert: Alert) -> None:
        machine, now = alert.verdict.machine, self.clock()
        held = self._held(now)
        if alert.verdict.level == "ok":
            if machine not in held:
                raise RefusedError(f"{machine} was not taken out by this program: it is not put back either")
            return
        against = [run for run in self.runs if run.dry == self._dry and run.level != "ok"]
        if sum(run.time > now - HOUR_NS for run in against) >= self.config.most_per_hour:
            raise RefusedError(f"most_per_hour = {self.config.most_per_hour} is reached: {machine} is skipped")
        out = len(held | {machine})
        if out > self.config.most_share * alert.fleet:
            share = f"most_share = {self.config.most_share:g}"
            raise RefusedError(f"{out} of {alert.fleet} machines are more than {share}: {machine} is skipped")

    def _held(self, now: int) -> set[str]:
        """Machines that count as taken out of service at `now` (Unix ns)."""
        held: set[str] = set()
        for run in self.runs:
            if run.dry == self._dry and run.time > now - self._hold_ns:
                if run.level != "ok":
                    held.add(run.machine)
                elif run.done:
                    held.discard(run.machine)
        return held

    def _run(self, words: list[str], alert: Alert) -> None:
        """Run and wait; the output is logged. Files, not pipes: a child left behind cannot block this process."""
        import tempfile  # loads many modules that a reader of the settings alone does not need

        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as said:
            given.write(json.dumps(alert.as_json()).encode())
            given.seek(0)
            try:
                process = subprocess.Popen(
                    words, stdin=given, stdout=said, stderr=said, env=_environment(alert), start_new_session=True
                )
            except (OSError, ValueError) as error:
                why = getattr(error, "strerror", None) or error
                raise RetryLaterError(f"{words[0]} cannot be run: {why}") from error
            code = self._wait(process)
            said.seek(0)
            output = " ".join(said.read(_OUTPUT_BYTES).decode(errors="replace").split())
        log.info(
            "ran %s: %s; output: %s", words, "killed" if code is None else f"exit code {code}", output or "nothing"
        )
        if code != 0:
            how = f"took longer than {self.config.timeout_seconds:g} s" if code is None else f"ended with code {code}"
            raise RetryLaterError(f"{words[0]} {how} for {alert.verdict.machine}: {output[:200] or 'no output'}")

    def _wait(self, process: subprocess.Popen[bytes]) -> int | None:
        """The exit code; None if it was killed."""
        try:
            return process.wait(self.config.timeout_seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return None

    def _known(self) -> list[Run]:
        try:
            return msgspec.json.decode(self.file.read_bytes(), type=list[Run])
        except FileNotFoundError:
            return []
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise ValueError(
                f"{self.file}, the record of alerts.command, cannot be read: check it, then remove it"
            ) from error

    def _save(self) -> None:
        """Write the file. Raises OSError: without a record nothing is run."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        new = self.file.with_suffix(".new")
        new.write_bytes(msgspec.json.encode(self.runs))
        new.replace(self.file)


def _environment(alert: Alert) -> dict[str, str]:
    """This environment without secrets, and the alert as PEERWATCH_MACHINE, PEERWATCH_LEVEL and so on."""
    hidden = ("PEERWATCH_", "CREDENTIALS_")  # tokens, and the folder where systemd keeps them
    ours = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    about = {
        name: "" if value is None else str(value).replace("\0", "")
        for name, value in (alert.as_json() | (alert.job.as_json() if alert.job else {})).items()
        if not isinstance(value, (list, dict))
    }
    return ours | {f"PEERWATCH_{name.upper()}": value for name, value in about.items()}
