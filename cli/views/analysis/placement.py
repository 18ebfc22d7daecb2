"""The spread of communicators and the advice for a better placement, on the terminal and as JSON."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from analysis.placement.advice import Advice
from analysis.placement.shared_switch import SharedSwitch
from analysis.placement.spread import KindSpread, Spread, by_kind

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_MOVES = 12


@dataclass(frozen=True, slots=True)
class Report:
    """What the command found."""

    time: int
    """Unix ns."""
    spreads: tuple[Spread, ...]
    advice: dict[str, Advice | None]
    """By task; None: nothing to place."""
    shared: tuple[SharedSwitch, ...]


def show(screen: Console, report: Report) -> None:
    """Print a table of kinds and the advice for each task, and switches that faulty machines share."""
    from rich.text import Text

    for one in report.shared:
        screen.print(Text(one.in_words(), style="bold red"))
    for task, advice in report.advice.items():
        spreads = [one for one in report.spreads if one.communicator.task == task]
        screen.print(Text(f"task {task[:8]}: {_headline(spreads)}", style="bold"))
        if kinds := by_kind(spreads):
            screen.print(_table(kinds))
        unknown = sorted({machine for one in spreads for machine in one.unknown})
        if unknown:
            screen.print(Text(f"  {len(unknown)} machines are not in the topology: {', '.join(unknown[:4])}"))
        for line in advice_lines(advice):
            screen.print(Text(f"  {line}"))


def _headline(spreads: list[Spread]) -> str:
    machines = {machine for one in spreads for machine in one.communicator.machines}
    leaves = {leaf for one in spreads for leaf in one.leaves}
    pods = {pod for one in spreads for pod in one.pods}
    above = f" in {len(pods)} {'pods' if len(pods) > 1 else 'pod'}" if pods else ""
    return f"{len(machines)} machines on {len(leaves)} {'leaves' if len(leaves) > 1 else 'leaf'}{above}"


def _table(kinds: tuple[KindSpread, ...]) -> Table:
    from rich.table import Table

    heads = (
        "groups",
        "number",
        "over leaves",
        "over pods",
        "over rails",
        "most leaves",
        "network busy %",
        "MB/s per rank",
    )
    table = Table(*heads, box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for one in kinds:
        counts = (one.count, one.over_leaves, one.over_pods, one.over_rails, one.most_leaves)
        busy = _pair(one.sending_within, one.sending_over, 100.0)
        table.add_row(one.kind, *map(str, counts), busy, _pair(one.rate_within, one.rate_over, 1e-6))
    return table


def _pair(within: float, over: float, scale: float) -> str:
    """The figure of groups within a leaf and of those over several; one where only one is known."""
    shown = [f"{value * scale:.3g}" if math.isfinite(value) else "-" for value in (within, over)]
    return "" if shown == ["-", "-"] else f"{shown[0]} within, {shown[1]} over"


def advice_lines(advice: Advice | None) -> list[str]:
    """The advice in lines; what each kind gains, then the moves."""
    if advice is None:
        return ["nothing to place: its groups are within machines, or on one leaf, or all over the whole task"]
    proved = "" if advice.is_best else " (the search ended before it was proved best; --seconds gives it longer)"
    if not advice.moves:
        return [f"no better placement was found{proved}"]
    weight = "weighted by traffic" if advice.weighted else "each group counted once: no traffic was measured"
    lines = [f"a better placement takes away {advice.gain:.0%} of the spread, {weight}{proved}"]
    for kind, number in advice.groups.items():
        (leaves, pods), (fewer_leaves, fewer_pods) = advice.before[kind], advice.after[kind]
        above = f", over pods {pods} -> {fewer_pods}" if pods or fewer_pods else ""
        lines.append(f"{kind}: groups over several leaves {leaves} -> {fewer_leaves} of {number}{above}")
    lines += [f"ranks of {machine} to {host}" for machine, host in advice.moves[:_MOVES]]
    rest = len(advice.moves) - _MOVES
    return [*lines, f"and {rest} more moves: --json lists all"] if rest > 0 else lines


def as_json(report: Report) -> dict[str, Any]:
    """The object of `placement --json`: ratios, bytes per second; null where unknown."""
    return {
        "time": report.time,
        "communicators": [_communicator(one) for one in report.spreads],
        "tasks": [{"task": task, "advice": _advice(advice)} for task, advice in report.advice.items()],
        "shared_switches": [
            {
                "level": one.level,
                "name": one.name,
                "faulty": list(one.faulty),
                "machines": one.machines,
                "chance": one.chance,
            }
            for one in report.shared
        ],
    }


def _communicator(one: Spread) -> dict[str, Any]:
    found = one.communicator
    return {
        "communicator": found.name,
        "task": found.task,
        "kind": found.kind,
        "ranks": found.ranks,
        "machines": list(found.machines),
        "leaves": list(one.leaves),
        "pods": list(one.pods),
        "rails": list(one.rails),
        "machines_not_in_topology": list(one.unknown),
        "bytes_per_second": _number(found.bytes_per_second),
        "send_pending_ratio": _number(found.sending),
    }


def _advice(advice: Advice | None) -> dict[str, Any] | None:
    if advice is None:
        return None
    return {
        "gain": advice.gain,
        "weighted_by_traffic": advice.weighted,
        "proved_best": advice.is_best,
        "kinds": [
            {
                "kind": kind,
                "groups": number,
                "over_leaves": {"now": advice.before[kind][0], "then": advice.after[kind][0]},
                "over_pods": {"now": advice.before[kind][1], "then": advice.after[kind][1]},
            }
            for kind, number in advice.groups.items()
        ],
        "moves": [{"from": machine, "to": host} for machine, host in advice.moves],
    }


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
