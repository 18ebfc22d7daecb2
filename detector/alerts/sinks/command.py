"""A program as a sink: it takes a machine out of work, or puts it back, and so is held on a short leash.

What was run is written down before it is run, so that a detector that crashes and starts anew knows of it.
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

import msgspec

from detector.alerts.alert import BLIND, Alert, RefusedError, RetryLaterError, Sink
from detector.model.verdict import Level

log = logging.getLogger(__name__)

HOUR_NS = 3600 * 10**9
ATTEMPTS = 3
"""A program that fails is run so often for one incident."""
_OUTPUT_BYTES = 2000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""A machine's name reaches the program only if it cannot be an option, a pattern (Slurm's m[1-9]) or several names."""
_PLACES = re.compile(r"\{(machine|incident|level)\}")


class CommandConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the sink `command`. Raises ValueError for a value that cannot be meant."""

    run: tuple[str, ...] = ()
    """The program and its arguments; {machine}, {incident} and {level} are filled in. There is no shell."""
    dry_run: bool = True
    """Only say what would be run."""
    levels: tuple[Level, ...] = ("crit",)
    """At which levels to run it; ok: when the incident is over."""
    timeout_seconds: float = 30.0
    """After this long it is killed, with all that it began."""
    most_per_hour: int = 4
    """So many runs against machines within an hour, and no more."""
    most_share: float = 0.1
    """So large a share of the machines may be taken out at once, and no more."""
    hold_seconds: float = 86400.0
    """A machine counts as taken out for so long, or until the program has run for it at level ok."""

    def __post_init__(self) -> None:
        """Refuse what cannot be meant, naming the key."""
        for key, low, high in (
            ("timeout_seconds", 0.1, 3600.0),
            ("most_per_hour", 1, 10000),
            ("most_share", 0.0, 1.0),
            ("hold_seconds", 60.0, 1e8),
        ):
            if not low <= getattr(self, key) <= high:
                raise ValueError(f"alerts.command.{key} is {getattr(self, key)}: it must lie in {low:g} to {high:g}")


class Run(msgspec.Struct):
    """One run: when (Unix ns), for which machine and incident, at which level, and whether it went well."""

    time: int
    machine: str
    incident: str
    level: Level
    dry: bool
    done: bool = False


class Command(Sink):
    """Runs the operator's program; `file` keeps what was run, `clock` gives the time (Unix ns)."""

    def __init__(self, config: CommandConfig, file: Path, clock: Callable[[], int]) -> None:
        if not config.run:
            raise ValueError("alerts.command names no program: set alerts.command.run, a list of program and arguments")
        self.config, self.file, self.clock = config, file, clock
        self.runs: list[Run] = self._known()

    def send(self, alert: Alert) -> str:
        """Run it for this machine if all bounds allow. Raises RefusedError if they do not, LaterError if it fails."""
        level = alert.verdict.level
        mine = self._since_turn(alert.incident, level)
        if alert.verdict.kind == BLIND or level not in self.config.levels or any(run.done for run in mine):
            return "nothing to run"
        words = self._words(alert)
        if len(mine) >= ATTEMPTS:
            raise RefusedError(f"{words[0]} has failed {ATTEMPTS} times for {alert.verdict.machine}: left to people")
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
        """Say what would be run; nothing is."""
        return f"not run, being a test: {self._words(alert)}"

    def _since_turn(self, incident: str, level: Level) -> list[Run]:
        """Runs at this level for this incident since it last got worse or was over: one that begins again counts."""
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
            raise RefusedError(f"{machine[:80]!r} is no name that may be handed to a program")
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
            raise RefusedError(f"most_per_hour = {self.config.most_per_hour} is reached: {machine} is left to people")
        out = len(held | {machine})
        if out > self.config.most_share * alert.fleet:
            share = f"most_share = {self.config.most_share:g}"
            raise RefusedError(f"{out} of {alert.fleet} machines are more than {share}: {machine} is left to people")

    def _held(self, now: int) -> set[str]:
        """Machines that count as taken out."""
        held: set[str] = set()
        for run in self.runs:
            if run.dry == self._dry and run.time > now - self._hold_ns:
                if run.level != "ok":
                    held.add(run.machine)
                elif run.done:
                    held.discard(run.machine)
        return held

    def _run(self, words: list[str], alert: Alert) -> None:
        """Run and wait; its output goes to the log. Files, not pipes: whatever it leaves behind cannot hold us."""
        import tempfile  # loads half the standard library, which who only reads the settings should not pay

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
            "ran %s: %s; it said: %s", words, "killed" if code is None else f"exit code {code}", output or "nothing"
        )
        if code != 0:
            how = f"took longer than {self.config.timeout_seconds:g} s" if code is None else f"ended with code {code}"
            raise RetryLaterError(f"{words[0]} {how} for {alert.verdict.machine}: {output[:200] or 'it said nothing'}")

    def _wait(self, process: subprocess.Popen[bytes]) -> int | None:
        """The exit code; None where it had to be killed."""
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
        except (OSError, msgspec.MsgspecError) as error:
            raise ValueError(
                f"{self.file}, what alerts.command has run, cannot be read: look, then remove it"
            ) from error

    def _save(self) -> None:
        """Raises OSError: what cannot be written down is not run."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        new = self.file.with_suffix(".new")
        new.write_bytes(msgspec.json.encode(self.runs))
        new.replace(self.file)


def _environment(alert: Alert) -> dict[str, str]:
    """Our own environment without secrets, and the alert as PEERWATCH_MACHINE, PEERWATCH_LEVEL, …"""
    hidden = ("PEERWATCH_", "CREDENTIALS_")  # tokens, and the folder where systemd keeps them
    ours = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    about = {
        name: "" if value is None else str(value).replace("\0", "")
        for name, value in alert.as_json().items()
        if not isinstance(value, (list, dict))
    }
    return ours | {f"PEERWATCH_{name.upper()}": value for name, value in about.items()}
