"""Blindness: Peerwatch receives no readings, so no alert does not mean healthy. This is an incident of its own."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from detector.alerts.alert import BLIND, clock, duration
from detector.alerts.brief import Brief
from detector.model.verdict import RANK, Level, Verdict
from store.schema.time import SECOND

log = logging.getLogger(__name__)

MACHINE = "peerwatch"
"""The machine name in alerts about Peerwatch itself."""
ADVICE = "Check the store and the network first, then the agents (systemctl status peerwatch-agent, peerwatch doctor)."
_NAMES, _WORDS = 5, 200


@dataclass(frozen=True, slots=True)
class View:
    """Number of watched machines, the silent ones with their last reading, and the error of the store with its start.

    Times are Unix ns.
    """

    machines: int
    silent: Mapping[str, int]
    error: str = ""
    failing: int = 0


class Blindness:
    """Reports that too few machines are read for `after_s` seconds, and its end; `file` holds the open verdict."""

    def __init__(self, file: Path, after_s: float) -> None:
        self.file, self.after_s = file, after_s
        self.said = _read(file)
        self._begun = 0

    def begin_again(self) -> None:
        """Give the agents the same time to report as after a start."""
        self._begun = 0

    def assess(self, now: int, view: View) -> list[Verdict]:
        """The verdicts at `now` (Unix ns): at most one."""
        self._begun = self._begun or now
        found = self._verdict(now, view)
        if found is not None and (self.said is None or RANK[found.level] > RANK[self.said.level]):
            return self._say(found)
        if found is None and self.said is not None and view.machines and not view.error:
            words = f"Peerwatch receives readings again since {clock(now)} UTC: {_count(view.machines)} read"
            over = Verdict(now, "", MACHINE, None, BLIND, BLIND, 0.0, self.said.since, "ok", words)
            return self._say(over)
        return []

    def _verdict(self, now: int, view: View) -> Verdict | None:
        level: Level = "crit"
        if view.error:
            since = view.failing
            words = f"the store cannot be used for {duration(now - since)} ({view.error[:_WORDS]}): "
            words += f"{_count(view.machines)} not judged"
        elif view.silent:
            since = max(view.silent.values())
            level = "crit" if 2 * len(view.silent) >= view.machines else "warn"
            words = f"no readings of {_who(view.silent, view.machines)} for {duration(now - since)}"
        # After a start of the detector the agents get the same time to report.
        if not (view.error or view.silent) or now - max(since, self._begun) < self.after_s * SECOND:
            return None
        return Verdict(now, "", MACHINE, None, BLIND, BLIND, 1.0, since, level, f"Peerwatch is blind: {words}")

    def _say(self, verdict: Verdict) -> list[Verdict]:
        self.said = None if verdict.level == "ok" else verdict
        try:
            if self.said is None:
                self.file.unlink(missing_ok=True)
            else:
                self.file.parent.mkdir(parents=True, exist_ok=True)
                self.file.write_bytes(msgspec.json.encode(self.said))
        except OSError as error:
            log.error("%s cannot be written, so a restart may repeat this alert: %s", self.file, error.strerror)
        return [verdict]


def brief_of(held: Collection[str]) -> Brief:
    """The brief of an alert about blindness; `held` are the incidents that stay open meanwhile."""
    shown = ", ".join(sorted(held)[:_NAMES]) + (", …" if len(held) > _NAMES else "")
    note = f"open incidents keep their last state: {shown}"
    return Brief(advice=ADVICE, notes=(note,) if held else ())


def _read(file: Path) -> Verdict | None:
    """The open verdict of an earlier detector."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=Verdict)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        log.warning("%s cannot be read, so it is replaced: %s", file, str(error).splitlines()[0])
        return None


def _who(silent: Collection[str], machines: int) -> str:
    if len(silent) == machines:
        return f"{machines} machine{'s' * (machines != 1)}"
    names = ", ".join(sorted(silent)[:_NAMES]) + (", …" if len(silent) > _NAMES else "")
    return f"{len(silent)} of {machines} machines ({names})"


def _count(machines: int) -> str:
    return f"{machines} machine{' is' if machines == 1 else 's are'}"
