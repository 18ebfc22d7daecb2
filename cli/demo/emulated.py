"""One demonstration: machines train, one gets a fault, the detector is watched until it has named somebody."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.queries.fleet_status import Standing, standing
from detector.config import Config
from detector.service.runner import LATE_NS, Runner

if TYPE_CHECKING:
    from cli.views.live_table import Picture
    from emulator.cluster.fleet import Fleet
    from store.schema.contract import Store

START_S = 45.0
DETECT_S = 30.0
LINGER_S = 4.0
"""After a right verdict the demo goes on for this long: a second, wrong one would show."""
SILENT_NS = 10 * 10**9


@dataclass(frozen=True)
class Plan:
    """What is to be shown. Times in seconds."""

    fault: str
    machine: str
    gpu: int
    healthy_s: float
    seed: int
    place: Path
    """The folder that the data go to."""


@dataclass
class Outcome:
    """What came of it."""

    fault: dict[str, Any]
    verdicts: list[dict[str, Any]] = field(default_factory=list)

    @property
    def correct(self) -> bool:
        """The faulty machine was named, and nobody else; without a fault, nobody."""
        named = {verdict["machine"] for verdict in self.verdicts if verdict["level"] != "ok"}
        return named == ({self.fault["machine"]} if self.fault["start"] else set())


class Show:
    """One run: wait until all train, let them train, break something, wait for the verdict."""

    def __init__(self, plan: Plan, fleet: Fleet, store: Store, screen: Picture) -> None:
        self.plan, self.fleet, self.store, self.screen = plan, fleet, store, screen
        self.runner = Runner(store, Config(), time.time_ns())
        self.outcome = Outcome({"machine": None, "device": None, "kind": plan.fault, "start": None})
        self.stop = threading.Event()

    def run(self) -> Outcome:
        """The whole show. Raises OSError when the fleet does not come up."""
        if not self._pass("starting", START_S, self._all_train):
            raise OSError(
                f"the fleet did not begin to train within {START_S:.0f} s: see the logs in {self.fleet.folder}"
            )
        self.screen.say(f"all train; {self.plan.healthy_s:.0f} s of health")
        self._pass("healthy", self.plan.healthy_s, self._anybody_named)
        if self.plan.fault == "none":
            self._pass("still healthy", DETECT_S, self._anybody_named)
            return self.outcome
        if not self.outcome.verdicts:
            start = self.fleet.inject(self.plan.fault, self.plan.machine, self.plan.gpu)
            device = f"gpu:{self.plan.gpu}"
            self.outcome.fault |= {"machine": self.plan.machine, "device": device, "start": start}
            self.screen.say(f"{self.plan.machine} {device} gets the fault {self.plan.fault}")
            if self._pass(f"{self.plan.fault} on {self.plan.machine}", DETECT_S, self._anybody_named):
                self._pass("verdict reached", LINGER_S, lambda _: False)
        return self.outcome

    def _pass(self, phase: str, seconds: float, done: Callable[[Standing], bool]) -> bool:
        """Look once a second until done (True) or the time is over (False)."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            now = time.time_ns()
            for verdict in self.runner.catch_up(now - LATE_NS, self.stop):
                self.outcome.verdicts.append(verdict.as_json())
                delay = (time.time_ns() - (self.outcome.fault["start"] or verdict.since)) / 1e9
                self.screen.say(f"{verdict.level}, after {delay:.0f} s: {verdict.message}")
            found = standing(self.store, now, SILENT_NS)
            drawn = replace(found, verdicts=tuple(self.outcome.verdicts))
            self.screen.show(f"{phase}, {left:.0f} s", drawn, self.runner.detector.suspicions())
            if done(found):
                return True
            time.sleep(max(0.05, 1 - (time.time_ns() - now) / 1e9))
        return False

    def _all_train(self, found: Standing) -> bool:
        moving = [m for m in found.machines.values() if m.readings.get("operations_per_second", 0) > 0]
        return len(moving) == len(self.fleet.names)

    def _anybody_named(self, _: Standing) -> bool:
        return bool(self.outcome.verdicts)
