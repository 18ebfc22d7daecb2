"""`peerwatch demo`: an emulated fleet trains on this computer, one machine gets a fault, and the detector finds it."""

from __future__ import annotations

import json as text
import random
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.standing import Standing, standing
from cli.up import agent_command
from emulator.faults import KINDS
from store.places import open_store

if TYPE_CHECKING:
    from cli.live import Picture
    from cli.watch import Runner
    from emulator.fleet import Fleet
    from store.contract import Store

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


def demo(
    fault: Annotated[str, typer.Option(help=f"One of {', '.join(KINDS)}.")] = "slow_gpu",
    machines: Annotated[int, typer.Option(min=4, max=64, help="How many machines train together.")] = 6,
    gpus: Annotated[int, typer.Option(min=1, max=8, help="GPUs of each machine.")] = 1,
    tensor: Annotated[int, typer.Option(min=1, help="Size of the tensor groups.")] = 1,
    pipeline: Annotated[int, typer.Option(min=1, help="Stages of the pipeline.")] = 1,
    healthy: Annotated[float, typer.Option(min=5, max=600, help="Seconds of healthy training before the fault.")] = 30,
    seed: Annotated[int | None, typer.Option(help="Chooses the machine and the noise; by chance if not given.")] = None,
    folder: Annotated[Path | None, typer.Option(help="Where the data go; a temporary folder if not given.")] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object instead of words.")] = False,
) -> None:
    """Show the whole of Peerwatch on an emulated fleet. Exit code: 0 the verdict is right, 1 it is wrong or missing."""
    if fault not in KINDS:
        raise ValueError(f"there is no fault {fault!r}: choose one of {', '.join(KINDS)}")
    chance = random.Random(seed)
    place = folder or Path(tempfile.mkdtemp(prefix="peerwatch-demo-"))
    place.mkdir(parents=True, exist_ok=True)
    names = [f"m{index:02d}" for index in range(machines)]
    plan = Plan(fault, chance.choice(names), chance.randrange(gpus), healthy)
    from cli.live import picture
    from emulator.fleet import Fleet

    data = place / "readings.db"
    if data.exists():
        raise ValueError(f"{data} is there already: name another --folder")
    with picture(to_stderr=json) as screen:
        missing = _missing()
        if missing:
            screen.say(f"Without {missing}: the fleet below is a simulation, its readings are made up by a generator.")
            from cli.pretend import pretend

            outcome = pretend(plan, machines, place, chance.randrange(1 << 30), screen)
        else:
            screen.say(f"{machines} emulated machines start to train, {gpus} GPU each; readings go to {data}")
            fleet = Fleet(
                place / "fleet",
                machines,
                gpus,
                tensor,
                pipeline,
                chance.randrange(1 << 30),
                lambda _: agent_command(data),
            )
            with closing(open_store(str(data), create=True)) as store, fleet:
                outcome = Show(plan, fleet, store, screen).run()
    if json:
        typer.echo(text.dumps({"fault": outcome.fault, "verdicts": outcome.verdicts, "correct": outcome.correct}))
    else:
        _tell(outcome, place, bool(missing))
    raise typer.Exit(0 if outcome.correct else 1)


def _missing() -> str:
    """What an emulated fleet under real probes lacks here; empty when nothing does."""
    import os

    from bpf.loader import BpfError, load

    if os.geteuid() != 0:
        return "root there are no namespaces and no probes"
    try:
        load(("nccl", "cuda")).close()
    except BpfError as error:
        return f"BPF ({error})"
    return ""


class Show:
    """One run: wait until all train, let them train, break something, wait for the verdict."""

    def __init__(self, plan: Plan, fleet: Fleet, store: Store, screen: Picture) -> None:
        from cli.watch import Runner
        from detector.config import Config

        self.plan, self.fleet, self.store, self.screen = plan, fleet, store, screen
        self.runner: Runner = Runner(store, Config(), time.time_ns())
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
        from cli.watch import LATE_NS

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


def _tell(outcome: Outcome, place: Path, simulated: bool) -> None:
    fault, start = outcome.fault, outcome.fault["start"]
    said = [verdict for verdict in outcome.verdicts if verdict["level"] != "ok"]
    typer.echo("")
    if start:
        typer.echo(f"fault    {fault['kind']} on {fault['machine']} {fault['device'] or ''}")
    else:
        typer.echo("fault    none")
    for verdict in said:
        after = f", {(verdict['time'] - start) / 1e9:.0f} s after the onset" if start else ""
        typer.echo(f"verdict  {verdict['level']}{after}: {verdict['message']}")
    if not said:
        typer.echo("verdict  nobody differs from its peers")
    typer.echo(f"that is  {'right' if outcome.correct else 'WRONG'}")
    typer.echo(f"data     {place}")
    typer.echo("")
    typer.echo("Try next:")
    if simulated:
        typer.echo(f"  peerwatch replay {place / 'recording'}")
    else:
        typer.echo(f"  peerwatch status --store {place / 'readings.db'} --silent 1h")
        typer.echo(f"  peerwatch export {place / 'recording'} --store {place / 'readings.db'}")
    typer.echo("  peerwatch demo --fault slow_link")
    typer.echo("  sudo peerwatch up          (on a machine that trains)")
