"""`peerwatch demo`: an emulated fleet trains here, one machine gets a fault, the detector names it."""

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
from emulator.shared.trainings import TRAININGS
from store.open import open_store

if TYPE_CHECKING:
    from cli.demo.emulated import Outcome, Plan
    from cli.views.live_table import LiveDisplay


class Variant(TypedDict):
    """The library of the emulated ranks, and whether their hosts enqueue ahead."""

    nccl: Path | None
    training: str


Fault = Annotated[str, typer.Option(help=f"One of {', '.join(KINDS)}.", autocompletion=lambda: list(KINDS))]
Machines = Annotated[int, typer.Option(min=4, max=64, help="Number of machines.")]
Gpus = Annotated[int, typer.Option(min=1, max=8, help="GPUs per machine.")]
Tensor = Annotated[int, typer.Option(min=1, help="Size of the tensor groups.")]
Pipeline = Annotated[int, typer.Option(min=1, help="Pipeline stages.")]
Healthy = Annotated[float, typer.Option(min=5, max=600, help="Seconds of training before the fault.")]
Seed = Annotated[
    int | None, typer.Option(help="Seed of the random numbers, which choose the machine; default: random.")
]
Nccl = Annotated[
    str,
    typer.Option(help="libnccl: real (NVIDIA's), a version such as 2.29.3, or emulated; default: real if installed."),
]
Training = Annotated[
    str,
    typer.Option(
        help="ahead (as PyTorch enqueues), blocking, graphs (CUDA's, on NVIDIA's libnccl), 1f1b or interleaved "
        "(pipeline schedules), or experts (a mixture of experts).",
        autocompletion=lambda: list(TRAININGS),
    ),
]
Folder = Annotated[Path | None, typer.Option(help="Folder of the data; default: a temporary folder.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def demo(
    fault: Fault = "slow_gpu",
    machines: Machines = 6,
    gpus: Gpus = 1,
    tensor: Tensor = 1,
    pipeline: Pipeline = 1,
    healthy: Healthy = 30,
    seed: Seed = None,
    nccl: Nccl = "",
    training: Training = "ahead",
    folder: Folder = None,
    json: Json = False,
) -> None:
    """Run Peerwatch on an emulated fleet with one fault. Exit code: 0 correct verdict, 1 wrong or missing."""
    if training not in TRAININGS:
        raise ValueError(f"unknown training {training!r}: use one of {', '.join(TRAININGS)}")
    plan, missing = _plan(fault, machines, gpus, healthy, seed, folder), _missing()
    outcome = _run(plan, (machines, gpus, tensor, pipeline), nccl, training, missing, json)
    if json:
        say_json({"fault": outcome.fault, "verdicts": outcome.verdicts, "correct": outcome.correct})
    else:
        _tell(outcome, plan.place, bool(missing))
    raise typer.Exit(0 if outcome.correct else 1)


def _plan(fault: str, machines: int, gpus: int, healthy: float, seed: int | None, folder: Path | None) -> Plan:
    """The fault, and the machine and GPU that get it by chance. Raises ValueError for an unknown fault."""
    if fault not in KINDS:
        raise ValueError(f"unknown fault {fault!r}: use one of {', '.join(KINDS)}")
    from cli.demo.emulated import Plan

    chance = random.Random(seed)
    place = folder or Path(tempfile.mkdtemp(prefix="peerwatch-demo-"))
    names = [f"m{index:02d}" for index in range(machines)]
    return Plan(fault, chance.choice(names), chance.randrange(gpus), healthy, chance.randrange(1 << 30), place)


def _run(plan: Plan, shape: tuple[int, int, int, int], nccl: str, training: str, missing: str, json: bool) -> Outcome:
    """The emulated fleet, or a simulation where that lacks something (`missing`)."""
    from cli.views.live_table import live_display

    try:
        with live_display(to_stderr=json) as screen:
            if missing:
                return _simulated(plan, shape[0], missing, screen)
            variant: Variant = {"nccl": _library(nccl, plan.fault, screen), "training": training}
            if training == "graphs" and not variant["nccl"]:
                raise ValueError("the emulated libnccl plays no CUDA graphs: use --nccl real, or --training ahead")
            return _emulated(plan, shape, variant, screen)
    except KeyboardInterrupt:
        data = plan.place / "readings.db"
        say(f"stopped; readings in {data}" if data.exists() else "stopped before the first readings", err=True)
        raise


def _library(nccl: str, fault: str, screen: LiveDisplay) -> Path | None:
    """NVIDIA's libnccl for the ranks; None: the emulated one, which is printed unless it was requested."""
    from emulator.libraries.nvidia import NOT_PLAYED
    from emulator.libraries.wheel import DEFAULT, find

    if nccl == "emulated":
        return None
    if not nccl and fault in NOT_PLAYED:
        screen.say(f"ranks run on an emulated libnccl, for NVIDIA's: {NOT_PLAYED[fault]}")
        return None
    version = DEFAULT if nccl in ("", "real") else nccl
    found = find(version)
    hint = f"python -m emulator.libraries.wheel {version}"
    if nccl and found is None:
        raise ValueError(f"NVIDIA's libnccl {version} is not installed: fetch it with {hint}, or use --nccl emulated")
    screen.say(
        f"ranks run on NVIDIA's libnccl {version}" if found else f"ranks run on an emulated libnccl ({hint} fetches it)"
    )
    return found


def _emulated(plan: Plan, shape: tuple[int, int, int, int], variant: Variant, screen: LiveDisplay) -> Outcome:
    from cli.demo.emulated import DemoRun
    from emulator.cluster.fleet import Fleet

    data = plan.place / "readings.db"
    if data.exists():
        raise ValueError(f"{data} exists already: use another --folder")
    plan.place.mkdir(parents=True, exist_ok=True)
    folder = plan.place / "fleet"
    fleet = Fleet(folder, *shape, plan.seed, lambda name: agent_command(data, root=folder.resolve() / name), **variant)
    screen.say(f"{shape[0]} emulated machines start to train, {shape[1]} GPU each; readings in {data}")
    with closing(open_store(str(data), create=True)) as store, fleet:
        return DemoRun(plan, fleet, store, screen).run()


def _simulated(plan: Plan, machines: int, missing: str, screen: LiveDisplay) -> Outcome:
    from cli.demo.simulated import simulated_demo

    screen.say(f"Without {missing}. This is a simulation: a generator makes the readings.")
    return simulated_demo(plan, machines, screen)


def _missing() -> str:
    """What an emulated fleet with real probes lacks here; empty if nothing."""
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
        near = f"; nearest: {outcome.nearest[0]} at {outcome.nearest[1]:.1f} of an alarm" if outcome.nearest else ""
        say(f"verdict  none: no machine differs from its peers{near}")
    say(f"result   {'correct' if outcome.correct else 'WRONG'}")
    say(f"data     {place}")
    say()
    say("Try next:")
    for line in next_steps(outcome, place, simulated):
        say(f"  {line}")


def next_steps(outcome: Outcome, place: Path, simulated: bool) -> list[str]:
    """Commands to copy: on these readings, another fault, and this machine."""
    command = "peerwatch" if shutil.which("peerwatch") else quote(str(Path(sys.executable).with_name("peerwatch")))
    data = quote(str(place / ("recording" if simulated else "readings.db")))
    steps = [f"{command} replay {data}" if simulated else f"{command} status --store {data} --stale-after 1h"]
    if any(verdict["level"] != "ok" for verdict in outcome.verdicts):
        page = quote(str(place / "verdict.html"))
        steps += [f"{command} show 1 --store {data}", f"{command} report verdict 1 --html {page} --store {data}"]
    other = "slow_link" if outcome.fault["kind"] != "slow_link" else "slow_gpu"
    root = "" if os.geteuid() == 0 else "sudo "
    return [*steps, f"{command} demo --fault {other}", f"{root}{command} up  # on a machine that trains"]
