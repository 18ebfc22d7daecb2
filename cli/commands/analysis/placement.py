"""`peerwatch placement`: how the groups of running jobs lie in the network, and a better way to place them."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli import time_format
from cli.config import locate_store, open_place
from cli.options import ConfigOption, JsonOption, StoreOption
from cli.terminal import console, say_json
from store.schema.contract import StoreError

if TYPE_CHECKING:
    from analysis.placement.advice import Advice
    from analysis.placement.communicators import Communicator
    from analysis.topology.places import Topology


def placement(
    topology: Annotated[
        list[Path],
        typer.Option(
            help="Topology: our TOML or CSV, Slurm's topology.conf, lldpcli -f json or nvidia-smi topo -m of a machine "
            "(file named by the machine), or a folder of such files; may be given several times."
        ),
    ],
    store: StoreOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
    at: Annotated[
        str, typer.Option(help="State at an earlier time: a duration ago (12m) or a time (2026-05-01T12:00, UTC).")
    ] = "0s",
    seconds: Annotated[
        float, typer.Option(min=0, max=3600, help="Longest search for a better placement, seconds.")
    ] = 10,
    spare: Annotated[
        bool, typer.Option("--spare", help="Also use machines of the topology on which no task runs.")
    ] = False,
) -> None:
    """Show the spread of communicators over leaves, pods and rails, what it costs, and a better placement."""
    from analysis.placement.shared_switch import shared_switches
    from analysis.placement.spread import spread_of
    from analysis.topology.files import read_topology
    from cli.queries.analysis.placement import read_communicators, read_faulty
    from cli.views.analysis.placement import Report, as_json, show

    now = time_format.point(at, time.time_ns())
    place, settings = locate_store(store, config)
    network = read_topology(topology)
    with closing(open_place(place, settings=settings)) as source:
        found, faulty = read_communicators(source, now), read_faulty(source, now)
    if not found:
        when = time_format.shown(now)
        raise StoreError(
            f"{place} holds no communicator in the minute before {when} UTC: does the agent run? else --at"
        )
    watched = {machine for one in found for machine in one.machines}
    with console(err=True).status(f"searching for a better placement, at most {seconds:g} s"):
        advice = _advice(found, network, seconds, spare)
    shared = shared_switches(faulty, watched | set(faulty), network)
    report = Report(now, spread_of(found, network), advice, shared)
    if json:
        say_json(as_json(report))
    else:
        show(console(), report)


def _advice(
    found: tuple[Communicator, ...], network: Topology, seconds: float, spare: bool
) -> dict[str, Advice | None]:
    """Task -> advice; each task has its part of the time."""
    from analysis.placement.advice import advise

    tasks = list(dict.fromkeys(one.task for one in found))
    busy = {machine.split(".")[0] for one in found for machine in one.machines}
    free = [machine for machine in network.places if machine.split(".")[0] not in busy] if spare else []
    out: dict[str, Advice | None] = {}
    for task in tasks:
        advice = advise([one for one in found if one.task == task], network, free, seconds / len(tasks))
        out[task] = advice
        used = {host for _, host in advice.moves} if advice else set()
        free = [machine for machine in free if machine not in used]
    return out
