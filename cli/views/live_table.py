"""The live view of a fleet: the table of `status`, redrawn each second, with the evidence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from cli.queries.fleet_status import FleetStatus
from cli.terminal import console
from cli.views.fleet_table import STYLE, table


class LiveDisplay(Protocol):
    """Shows the state of the fleet."""

    def show(self, headline: str, found: FleetStatus, suspicions: Mapping[str, float]) -> None:
        """Draw; `suspicions` is the evidence on each machine as a multiple of the alarm threshold."""

    def say(self, line: str) -> None:
        """Print a line that stays."""


class _Screen:
    def __init__(self, live: Live) -> None:
        self._live = live

    def show(self, headline: str, found: FleetStatus, suspicions: Mapping[str, float]) -> None:
        machines = {
            name: replace(machine, readings={"evidence": suspicions.get(name, 0.0), **machine.readings})
            for name, machine in found.machines.items()
        }
        verdicts = [
            Text(f"{verdict['level']}: {verdict['message']}", STYLE[str(verdict["level"])])
            for verdict in found.verdicts
        ]
        summary = verdicts or [
            Text("detector: no machine differs from its peers", "green" if found.machines else "dim")
        ]
        drawn, _ = table(replace(found, machines=machines), self._live.console.width)
        self._live.update(Group(Text(headline, "bold"), drawn, *summary), refresh=True)

    def say(self, line: str) -> None:
        self._live.console.print(line)


class _Lines:
    def __init__(self, console: Console) -> None:
        self._console = console

    def show(self, headline: str, found: FleetStatus, suspicions: Mapping[str, float]) -> None:
        """Nothing: a file or pipe gets only the lines of `say`."""

    def say(self, line: str) -> None:
        self._console.print(line, soft_wrap=True)


@contextmanager
def live_display(to_stderr: bool = False) -> Iterator[LiveDisplay]:
    """A live screen on a terminal, plain lines otherwise."""
    screen = console(to_stderr)
    if not screen.is_terminal:
        yield _Lines(screen)
        return
    with Live(console=screen, auto_refresh=False, transient=True) as live:
        yield _Screen(live)
