"""Who is compared with nobody, and why: in sentences for people, and as events by which others come to know it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from detector.config import Config
from detector.methods.peers.state import Panel
from detector.timeseries.rows import Rows

SOURCE, CODE, OVER = "detector", "no_peers", "peers"
"""Of the events: who is compared with nobody, and who is no longer so."""


@dataclass(frozen=True, slots=True)
class Alone:
    """A group in which nobody is compared by one table."""

    table: str
    task: str
    title: str
    """What they are within the task; empty: all of it."""
    members: int
    machines: frozenset[str]
    few: bool
    """Whether it is too small; else the readings of one foretell nothing of the others'."""


def alone(panels: Mapping[str, Panel], config: Config) -> list[Alone]:
    """All such groups, by table and task."""
    found = []
    for table, panel in sorted(panels.items()):
        metrics, count = panel.strength.shape
        for groups, members in panel.groups.sizes:
            few = members.shape[1] < config.min_peers
            for number, mine in zip(groups.tolist(), members, strict=True):
                old = mine[mine < count]
                seen = len(old) and np.median(panel.norm.count[:metrics, old]) >= config.comparability_steps
                believed = panel.believed[:, number : number + 1]
                if few or (seen and believed.size and not believed.any()):
                    task, title = panel.titles[number]
                    machines = frozenset(panel.window.entities[at][0] for at in mine)
                    found.append(Alone(table, panel.tasks[task], title, len(mine), machines, few))
    return sorted(found, key=lambda one: (one.table, one.task, one.title))


def sentences(found: Iterable[Alone], config: Config) -> list[str]:
    """One on each group."""
    said = []
    for one in found:
        who = f"{one.table}, task {one.task}" + (f", {one.title}" if one.title else "")
        why = f"as {one.members} are too few to be compared (at least {config.min_peers})"
        strange = "as the readings of one foretell nothing of the others'"
        said.append(f"{who}: no peers, {why if one.few else strange}")
    return said


def by_machine(found: Iterable[Alone], config: Config) -> dict[str, str]:
    """By machine, in words, by what it or its devices are compared with nobody."""
    tables: dict[str, tuple[list[str], list[str]]] = {}
    for one in found:
        for machine in one.machines:
            tables.setdefault(machine, ([], []))[one.few].append(one.table)
    words = "like no others by {}", f"fewer than {config.min_peers} of its kind by {{}}"
    return {
        machine: "; ".join(
            text.format(", ".join(dict.fromkeys(names))) for names, text in zip(reasons, words, strict=True) if names
        )
        for machine, reasons in sorted(tables.items())
    }


def uncompared_from_events(events: Rows) -> dict[str, str]:
    """By machine, what rows of the table `event` say last of who is compared with nobody."""
    found: dict[str, str] = {}
    if events.keys != ("source", "code"):
        return found
    columns = events.who(0), events.who(1), events.who(2), events.text("message")
    for at in (columns[1] == SOURCE).nonzero()[0]:
        machine, _, code, message = (column[at] for column in columns)
        if code == CODE:
            found[machine] = message
        elif code == OVER:
            found.pop(machine, None)
    return dict(sorted(found.items()))
