"""`peerwatch demo`: an emulated fleet trains on this computer, one machine gets a fault, and the detector finds it."""

from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, TypedDict

import typer

from cli.agent_process import agent_command
from cli.terminal import say, say_json
from emulator.shared.faults import KINDS
from store.open import open_store

if TYPE_CHECKING:
    from cli.demo.emulated import Outcome, Plan
    from cli.views.live_table import Picture


class Variant(TypedDict):
    """What the emulated ranks run on, and whether their hosts run ahead."""

    nccl: Path | None
    training: str


def demo(
    fault: Annotated[
        str, typer.Option(help=f"One of {', '.join(KINDS)}.", autocompletion=lambda: list(KINDS))
    ] = "slow_gpu",
    machines: Annotated[int, typer.Option(min=4, max=64, help="How many machines train together.")] = 6,
    gpus: Annotated[int, typer.Option(min=1, max=8, help="GPUs of each machine.")] = 1,
    tensor: Annotated[int, typer.Option(min=1, help="Size of the tensor groups.")] = 1,
    pipeline: Annotated[int, typer.Option(min=1, help="Stages of the pipeline.")] = 1,
    healthy: Annotated[float, typer.Option(min=5, max=600, help="Seconds of healthy training before the fault.")] = 30,
    seed: Annotated[int | None, typer.Option(help="Chooses the machine and the noise; by chance if not given.")] = None,
    nccl: Annotated[
        str,
        typer.Option(help="real (NVIDIA's own), one of its versions such as 2.29.3, or emulated; real if it is there."),
    ] = "",
    training: Annotated[str, typer.Option(help="ahead (as programs on PyTorch) or blocking.")] = "blocking",
    folder: Annotated[Path | None, typer.Option(help="Where the data go; a temporary folder if not given.")] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object instead of words.")] = False,
) -> None:
    """Show the whole of Peerwatch on an emulated fleet. Exit code: 0 the verdict is right, 1 it is wrong or missing."""
    if training not in ("ahead", "blocking"):
        raise ValueError(f"there is no training {training!r}: choose ahead or blocking")
    if fault not in KINDS:
        raise ValueError(f"there is no fault {fault!r}: choose one of {', '.join(KINDS)}")
    from cli.demo.emulated import Plan
    from cli.views.live_table import picture

    chance = random.Random(seed)
    place = folder or Path(tempfile.mkdtemp(prefix="peerwatch-demo-"))
    names = [f"m{index:02d}" for index in range(machines)]
    plan = Plan(fault, chance.choice(names), chance.randrange(gpus), healthy, chance.randrange(1 << 30), place)
    shape = (machines, gpus, tensor, pipeline)
    try:
        with picture(to_stderr=json) as screen:
            missing = _missing()
            if missing:
                outcome = _simulated(plan, machines, missing, screen)
            else:
                variant: Variant = {"nccl": _library(nccl, screen), "training": training}
                outcome = _emulated(plan, shape, variant, screen)
    except KeyboardInterrupt:
        data = plan.place / "readings.db"
        say(f"stopped; readings in {data}" if data.exists() else "stopped before there were readings", err=True)
        raise
    if json:
        say_json({"fault": outcome.fault, "verdicts": outcome.verdicts, "correct": outcome.correct})
    else:
        _tell(outcome, place, bool(missing))
    raise typer.Exit(0 if outcome.correct else 1)


def _library(nccl: str, screen: Picture) -> Path | None:
    """NVIDIA's libnccl that the ranks run on; None: the emulated one, which is said where nobody chose it."""
    from emulator.libraries.wheel import DEFAULT, find

    if nccl == "emulated":
        return None
    version = DEFAULT if nccl in ("", "real") else nccl
    found = find(version)
    hint = f"python -m emulator.libraries.wheel {version}"
    if nccl and found is None:
        raise ValueError(f"NVIDIA's libnccl {version} is not here: fetch it with {hint}, or choose --nccl emulated")
    screen.say(
        f"ranks run on NVIDIA's libnccl {version}" if found else f"ranks run on an emulated libnccl ({hint} fetches it)"
    )
    return found


def _emulated(plan: Plan, shape: tuple[int, int, int, int], variant: Variant, screen: Picture) -> Outcome:
    from cli.demo.emulated import Show
    from emulator.cluster.fleet import Fleet

    data = plan.place / "readings.db"
    if data.exists():
        raise ValueError(f"{data} is there already: name another --folder")
    plan.place.mkdir(parents=True, exist_ok=True)
    folder = plan.place / "fleet"
    fleet = Fleet(folder, *shape, plan.seed, lambda name: agent_command(data, root=folder.resolve() / name), **variant)
    screen.say(f"{shape[0]} emulated machines start to train, {shape[1]} GPU each; readings go to {data}")
    with closing(open_store(str(data), create=True)) as store, fleet:
        return Show(plan, fleet, store, screen).run()


def _simulated(plan: Plan, machines: int, missing: str, screen: Picture) -> Outcome:
    from cli.demo.simulated import pretend

    screen.say(f"Without {missing}. What follows is a simulation: its readings are made up by a generator.")
    return pretend(plan, machines, screen)


def _missing() -> str:
    """What an emulated fleet under real probes lacks here; empty when nothing does."""
    from agent.sampling.loop import load_probes
    from bpf.loader import BpfError

    if os.geteuid() != 0:
        return "root there are no namespaces and no probes"
    try:
        load_probes().close()
    except BpfError as error:
        return f"probes there is nothing to see of a fleet: {error}"
    return ""


def _tell(outcome: Outcome, place: Path, simulated: bool) -> None:
    fault, start = outcome.fault, outcome.fault["start"]
    said = [verdict for verdict in outcome.verdicts if verdict["level"] != "ok"]
    say("")
    if start:
        say(f"fault    {fault['kind']} on {fault['machine']} {fault['device'] or ''}")
    else:
        say("fault    none")
    for verdict in said:
        after = f", {(verdict['time'] - start) / 1e9:.0f} s after the onset" if start else ""
        say(f"verdict  {verdict['level']}{after}: {verdict['message']}")
    if not said:
        say("verdict  nobody differs from its peers")
    say(f"that is  {'right' if outcome.correct else 'WRONG'}")
    say(f"data     {place}")
    say()
    say("Try next:")
    for line in next_steps(outcome, place, simulated):
        say(f"  {line}")


def next_steps(outcome: Outcome, place: Path, simulated: bool) -> list[str]:
    """Commands that work as they are printed: on these readings, another fault, and the real thing."""
    command = "peerwatch" if shutil.which("peerwatch") else quote(str(Path(sys.executable).with_name("peerwatch")))
    data = quote(str(place / ("recording" if simulated else "readings.db")))
    steps = [f"{command} replay {data}" if simulated else f"{command} status --store {data} --silent 1h"]
    if any(verdict["level"] != "ok" for verdict in outcome.verdicts):
        page = quote(str(place / "verdict.html"))
        steps += [f"{command} show 1 --store {data}", f"{command} report verdict 1 --html {page} --store {data}"]
    other = "slow_link" if outcome.fault["kind"] != "slow_link" else "slow_gpu"
    root = "" if os.geteuid() == 0 else "sudo "
    return [*steps, f"{command} demo --fault {other}", f"{root}{command} up  # on a machine that trains"]
