"""What is not compared, and why: in sentences for people, and as events in the store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from detector.config import Config
from detector.methods.peers.state import Panel
from detector.timeseries.rows import Rows

SOURCE, CODE, OVER = "detector", "no_peers", "peers"
"""Of the events: a machine is not compared, and it is compared again."""


@dataclass(frozen=True, slots=True)
class Uncompared:
    """A group of which no member is compared by one table."""

    table: str
    task: str
    label: str
    """What they are within the task; empty: all of it."""
    members: int
    machines: frozenset[str]
    few: bool
    """Whether it is too small; otherwise its members do not predict each other's readings."""


def uncompared(panels: Mapping[str, Panel], config: Config) -> list[Uncompared]:
    """All such groups, by table and task."""
    found = []
    for table, panel in sorted(panels.items()):
        metrics, count = panel.deviation.shape
        for groups, members in panel.groups.sizes:
            few = members.shape[1] < config.min_peers
            for number, mine in zip(groups.tolist(), members, strict=True):
                old = mine[mine < count]
                seen = len(old) and np.median(panel.baseline.samples[:metrics, old]) >= config.comparability_steps
                peers_valid = panel.peers_valid[:, number : number + 1]
                if few or (seen and peers_valid.size and not peers_valid.any()):
                    task, label = panel.group_labels[number]
                    machines = frozenset(panel.window.entities[at][0] for at in mine)
                    found.append(Uncompared(table, panel.tasks[task], label, len(mine), machines, few))
    return sorted(found, key=lambda one: (one.table, one.task, one.label))


def sentences(found: Iterable[Uncompared], config: Config) -> list[str]:
    """One on each group."""
    found_text = []
    for one in found:
        name = f"{one.table}, task {one.task}" + (f", {one.label}" if one.label else "")
        why = f"as {one.members} are too few to be compared (at least {config.min_peers})"
        strange = "as the readings of one do not predict the others'"
        found_text.append(f"{name}: no peers, {why if one.few else strange}")
    return found_text


def by_machine(found: Iterable[Uncompared], config: Config) -> dict[str, str]:
    """By machine, in words, the tables by which it or its devices are not compared."""
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
    """By machine, what rows of the table `event` say last of what is not compared."""
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
