"""`peerwatch suspects`: which machines to evict, what to test next, and how many spares to have ready."""

from __future__ import annotations

import re
import time
from contextlib import closing
from typing import Annotated, Any

import typer

from cli import time_format
from cli.config import locate_store, open_place, open_signed
from cli.options import ConfigOption, JsonOption, StoreOption
from cli.queries.completion import machine_names
from cli.queries.names import machines as known_machines
from cli.queries.names import matching
from cli.terminal import console, say, say_json
from store.schema.contract import Store, StoreError
from store.schema.sample import Batch
from store.schema.time import SECOND
from store.zoom_requests import ZoomRequest

app = typer.Typer(help="Name suspects by their stacks, plan their tests, size the spares.", no_args_is_help=True)
_HOUR_NS = 3600 * SECOND
_ORDER_S, _PATIENCE_S = 75.0, 95.0
_HERTZ = 0.1
_SHOWN = 12
_RANGE = re.compile(r"(.*)\[(\d+)-(\d+)\](.*)", re.DOTALL)
_MOST_NAMES = 100_000


@app.callback()
def options() -> None:
    """Name suspects by their stacks, plan their tests, size the spares."""


@app.command()
def stacks(
    machine: Annotated[
        list[str] | None,
        typer.Argument(help="Machines of the task, or patterns; without: all.", autocompletion=machine_names),
    ] = None,
    take: Annotated[bool, typer.Option(help="Have agents take stacks now: 5 rounds, 10 s apart; takes 95 s.")] = False,
    since: Annotated[str, typer.Option(help="Stacks from then on: a time (UTC), or a duration such as 10m.")] = "10m",
    store: StoreOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Name the machines of the parallel group in which most ranks have stacks unlike those of all others."""
    from detector.explain.rank_snapshot import RankSnapshot
    from detector.explain.stack_rounds import suspects
    from detector.timeseries.rows import rows_of

    place, settings = locate_store(store, config)
    with closing(open_signed(place, False, settings) if take else open_place(place, settings=settings)) as source:
        team = matching(source, machine, place) if machine else known_machines(source, _HOUR_NS)
        now = _take(source, team) if take else (source.span() or (0, 0))[1]
        first = now - round(_PATIENCE_S * SECOND) if take else time_format.point(since, now)
        rows = source.read("stack", first, now)
        if not rows.num_rows:
            raise StoreError(
                f"{place} holds no stack of that time: take them with --take, while the task runs under agents with "
                "the source stacks"
            )
        snapshot = RankSnapshot(rows_of("nccl", source.read("nccl", first - 30 * SECOND, now)))
        found = suspects(rows, snapshot.groups(), snapshot.ranks(), team)
    if json:
        say_json(found.as_json())
        return
    for name, times in found.outliers.items():
        say(f"{name}: its stacks differ from all others in {times} of {found.rounds} rounds")
    if not found.machines:
        say(f"no suspect: {found.rounds} rounds, no rank is elsewhere than the others")
        return
    group = f", which share communicator {found.group[:8]}" if found.group else ""
    sure = "" if found.sure else "; fewer than half of the rounds agree: take them again (--take)"
    say(f"suspects: {', '.join(found.machines)}{group} (flagged in {found.flagged} of {found.rounds} rounds){sure}")
    say(f"test them: peerwatch check {' '.join(found.machines[:_SHOWN])}")


def _take(store: Store, team: list[str]) -> int:
    """Ask agents for rounds of stacks and wait for them; returns the time until which to read, Unix ns."""
    now = time.time_ns()
    order = ZoomRequest(now, "stacks", _HERTZ, now + round(_ORDER_S * SECOND))
    store.write([Batch(name, now, (order.sample(),)) for name in team])
    screen = console(err=True)
    with screen.status(f"five rounds of stacks on {len(team)} machines: about {_PATIENCE_S:.0f} s"):
        time.sleep(_PATIENCE_S)
    return time.time_ns()


@app.command()
def plan(
    machine: Annotated[list[str], typer.Argument(help="All machines in rank order: names, or 'm[000-127]'.")],
    pipeline: Annotated[int, typer.Option(min=1, help="Machines of one pipeline (stages × machines a stage).")] = 1,
    horizontal: Annotated[str, typer.Option(help="Groups of the first phase that failed, such as 3 or 0,4.")] = "",
    vertical: Annotated[str, typer.Option(help="Groups of the second phase that failed.")] = "",
    minutes: Annotated[float, typer.Option(min=0.1, max=100_000, help="Length of one replay, in minutes.")] = 15.0,
    gpus: Annotated[int, typer.Option(min=1, max=1024, help="GPUs of a machine.")] = 8,
    reproduces: Annotated[
        float, typer.Option(min=0.001, max=1, help="Chance that the fault shows in one replay, 0.001 to 1.")
    ] = 1.0,
    json: JsonOption = False,
) -> None:
    """Plan a dual-phase replay: the groups to test next or, with the failing groups, the machines to evict."""
    from analysis.suspects.replay_plan import plan_replay, repeats

    names = _distinct([name for word in machine for name in _expanded(word)])
    found, times = plan_replay(len(names), pipeline), repeats(reproduces)
    failed = _numbers(horizontal), _numbers(vertical)
    found.check(*failed[0], *failed[1])
    if failed[1] and not failed[0]:
        raise ValueError("--vertical needs --horizontal: which groups of the first phase failed?")
    phase = "done" if all(failed) else "vertical" if failed[0] else "horizontal"
    member = found.vertical() if phase == "vertical" else found.horizontal()
    groups = [[names[at] for at in (member == group).nonzero()[0]] for group in range(found.groups)]
    result = {
        "phase": phase,
        "groups": [] if phase == "done" else groups,
        "group_size": found.size,
        "replays_a_phase": times,
        "evict": [names[at] for at in found.suspects(*failed)] if phase == "done" else [],
        "expected_evicted_for_one_fault": found.expected_suspects(1),
        "expected_evicted_for_two_faults": found.expected_suspects(2),
        "gpu_hours": 2 * times * minutes / 60 * len(names) * gpus,
    }
    if json:
        say_json(result)
    else:
        _say_plan(result, len(names), minutes, horizontal)


def _say_plan(result: dict[str, Any], machines: int, minutes: float, horizontal: str) -> None:
    phase, times, size = result["phase"], result["replays_a_phase"], result["group_size"]
    say(
        f"{machines} machines, {machines // size} groups of {size} in each of two phases, "
        f"{times} replay{'s' * (times != 1)} of {minutes:g} min each: {result['gpu_hours']:,.0f} GPU-hours"
    )
    one, two = result["expected_evicted_for_one_fault"], result["expected_evicted_for_two_faults"]
    say(f"machines to evict: {one:.1f} with one fault, {two:.1f} with two (mean)")
    for at, group in enumerate(result["groups"]):
        say(f"{phase} group {at}: {' '.join(group)}")
    if phase == "done":
        none = "none: no machine is in a failing group of both phases; replay once more"
        say(f"evict: {' '.join(result['evict']) or none}")
    else:
        before = "" if phase == "horizontal" else f" --horizontal {horizontal}"
        say(f"test these at the same time, then: peerwatch suspects plan …{before} --{phase} FAILED")


@app.command()
def standby(
    repair: Annotated[str, typer.Option(help="Time until a failed machine is back, such as 12h or 2d.")] = "1d",
    share: Annotated[float, typer.Option(min=0.5, max=0.9999, help="Share of the time with spares enough.")] = 0.99,
    days: Annotated[int, typer.Option(min=1, max=366, help="History to read, in days.")] = 28,
    machines: Annotated[int | None, typer.Option(min=1, help="Machines of the job; default: the fleet.")] = None,
    store: StoreOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Size the warm standbys from the incidents of the fleet: spares for the failures of one repair time."""
    import numpy as np

    from analysis.suspects.standby import size_standby
    from detector.alerts.past_incidents import DAY_NS, read_incidents

    place, settings = locate_store(store, config)
    with closing(open_place(place, settings=settings)) as source:
        ends = source.span()
        fleet = known_machines(source, _HOUR_NS)
        if ends is None or not fleet:
            raise StoreError(f"{place} holds no reading yet; start the agent (peerwatch agent)")
        first = max(ends[0], ends[1] - days * DAY_NS)
        with console(err=True).status(f"reading {days} days of history"):
            found = read_incidents(source, first, ends[1])
        past = [one for one in found if one.worst == "crit" and one.verdict.machine]
    hours = np.array([one.opened / _HOUR_NS for one in past])
    size = (first / _HOUR_NS, ends[1] / _HOUR_NS, len(fleet), time_format.duration(repair) / _HOUR_NS, share)
    spares = size_standby(hours, *size, job=machines)
    if json:
        say_json(spares.as_json())
        return
    say(
        f"{spares.incidents} critical incidents on {len(fleet)} machines in {spares.days:.1f} days; "
        f"within {repair} a machine fails with probability {spares.chance:.4f}"
    )
    say(f"warm standbys for {spares.machines} machines, {share:.2%} of the time: {spares.bursts}")
    say(f"if failures were independent (binomial): {spares.binomial}; the past: at most {spares.most} at a time")


def _numbers(text: str) -> list[int]:
    """Group numbers of an option. Raises ValueError."""
    if not re.fullmatch(r"\d{0,9}(,\d{1,9})*", text):
        raise ValueError(f"{text!r} are no group numbers: write for example 3 or 0,4")
    return [int(part) for part in text.split(",") if part]


def _distinct(names: list[str]) -> list[str]:
    """The names. Raises ValueError where a machine is named twice."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"{name} is named twice: name each machine of the job once")
        seen.add(name)
    return names


def _expanded(word: str) -> list[str]:
    """The names that `m[08-11]` stands for. Raises ValueError for a range that is none."""
    found = _RANGE.fullmatch(word)
    if not found:
        if "[" in word or "]" in word:
            raise ValueError(f"{word} is no range of machines: write for example m[000-127]")
        return [word]
    before, low, high, after = found.groups()
    if not 0 <= int(high) - int(low) < _MOST_NAMES:
        raise ValueError(f"{word} is no range of machines: write for example m[000-127]")
    return [f"{before}{number:0{len(low)}}{after}" for number in range(int(low), int(high) + 1)]
