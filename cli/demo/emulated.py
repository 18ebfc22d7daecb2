"""One demo: machines train, one gets a fault, and the detector runs until it names a machine."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.queries.fleet_status import FleetStatus, read_fleet_status
from detector.config import Config
from detector.model.text import plural
from detector.service.runner import LATE_NS, Runner
from emulator.cluster.machine import ROOM_BYTES

if TYPE_CHECKING:
    from cli.views.live_table import LiveDisplay
    from emulator.cluster.fleet import Fleet
    from store.schema.contract import Store

START_S = 90.0
DETECT_S = 30.0
BUSY_LOAD = 4.0
"""Load for each processor above which readings come late, so that a verdict gets DETECT_S once more."""
LINGER_S = 4.0
"""Seconds that the demo runs on after a verdict: a second, wrong verdict would appear."""
SILENT_NS = 10 * 10**9


@dataclass(frozen=True)
class Plan:
    """Parameters of the demo. Times in seconds."""

    fault: str
    machine: str
    gpu: int
    healthy_s: float
    seed: int
    place: Path
    """Folder of the data."""


@dataclass
class Outcome:
    """Result of the demo."""

    fault: dict[str, Any]
    verdicts: list[dict[str, Any]] = field(default_factory=list)
    nearest: tuple[str, float] | None = None
    """Without a verdict: the most suspicious machine, and its evidence as a multiple of what raises an alarm."""

    @property
    def alarms(self) -> list[dict[str, Any]]:
        """Verdicts other than notes and endings."""
        return [verdict for verdict in self.verdicts if verdict["level"] in ("warn", "crit")]

    @property
    def correct(self) -> bool:
        """Whether the alarms name the faulty machine and no other; without a fault, none."""
        named = {verdict["machine"] for verdict in self.alarms}
        return named == ({self.fault["machine"]} if self.fault["start"] else set())


class DemoRun:
    """One run: wait until all machines train, let them train, inject the fault, wait for the verdict."""

    def __init__(self, plan: Plan, fleet: Fleet, store: Store, screen: LiveDisplay) -> None:
        self.plan, self.fleet, self.store, self.screen = plan, fleet, store, screen
        self.runner = Runner(store, Config(), time.time_ns())
        self.outcome = Outcome({"machine": None, "device": None, "kind": plan.fault, "start": None})
        self.stop = threading.Event()

    def run(self) -> Outcome:
        """The demo from start to end. Raises OSError when the fleet does not start."""
        if not self._run_phase("starting", START_S, self._all_train):
            raise OSError(why_not_started(self.plan.place, self.fleet.folder))
        self.screen.say(f"all machines train; {self.plan.healthy_s:.0f} s without a fault")
        self._run_phase("healthy", self.plan.healthy_s, self._has_alarm)
        if self.plan.fault == "none":
            self._run_phase("still healthy", DETECT_S, self._has_alarm)
            return self.outcome
        if not self.outcome.alarms:
            start = self.fleet.inject(self.plan.fault, self.plan.machine, self.plan.gpu)
            device = f"gpu:{self.plan.gpu}"
            self.outcome.fault |= {"machine": self.plan.machine, "device": device, "start": start}
            self.screen.say(f"{self.plan.machine} {device} gets the fault {self.plan.fault}")
            if self._is_found(f"{self.plan.fault} on {self.plan.machine}"):
                self._run_phase("verdict reached", LINGER_S, lambda _: False)
        return self.outcome

    def _is_found(self, phase: str) -> bool:
        """Wait for an alarm, longer where other work holds this machine; without one, keep who was nearest to it."""
        found = self._run_phase(phase, DETECT_S, self._has_alarm)
        load, processors = os.getloadavg()[0], os.cpu_count() or 1
        if not found and load > BUSY_LOAD * processors:
            busy = f"this machine is busy (load {load:.0f}, {plural(processors, 'processor')}), so readings come late"
            self.screen.say(f"no verdict yet; {busy}: {DETECT_S:.0f} s more")
            found = self._run_phase(phase, DETECT_S, self._has_alarm)
        if not found:
            suspicions = self.runner.detector.suspicions()
            self.outcome.nearest = max(suspicions.items(), key=lambda one: one[1], default=None)
        return found

    def _run_phase(self, phase: str, seconds: float, done: Callable[[FleetStatus], bool]) -> bool:
        """Judge once a second until done (True) or until the time is over (False)."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            now = time.time_ns()
            for verdict in self.runner.catch_up(now - LATE_NS, self.stop):
                self.outcome.verdicts.append(verdict.as_json())
                delay = (verdict.time - (self.outcome.fault["start"] or verdict.since)) / 1e9
                self.screen.say(f"{verdict.level}, after {delay:.0f} s: {verdict.message}")
            found = read_fleet_status(self.store, now, SILENT_NS)
            drawn = replace(found, verdicts=tuple(self.outcome.verdicts))
            self.screen.show(f"{phase}, {left:.0f} s", drawn, self.runner.detector.suspicions())
            if done(found):
                return True
            time.sleep(max(0.05, 1 - (time.time_ns() - now) / 1e9))
        return False

    def _all_train(self, found: FleetStatus) -> bool:
        moving = [m for m in found.machines.values() if m.readings.get("operations_per_second", 0) > 0]
        return len(moving) == len(self.fleet.names)

    def _has_alarm(self, _: FleetStatus) -> bool:
        return bool(self.outcome.alarms)


def why_not_started(place: Path, logs: Path) -> str:
    """Why a fleet does not train in time, in one line."""
    if shutil.disk_usage(place).free < ROOM_BYTES:
        return f"{place} has no room left for the fleet's readings: free some, or use another --folder"
    return f"the fleet did not start to train within {START_S:.0f} s: see the logs in {logs}"
