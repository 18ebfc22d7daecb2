"""The live picture of a fleet: the table that `status` prints, drawn anew each second, with the detector's opinion."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from cli.queries.fleet_status import Standing
from cli.terminal import console
from cli.views.fleet_table import STYLE, table


class Picture(Protocol):
    """Shows how things stand."""

    def show(self, headline: str, found: Standing, suspicions: Mapping[str, float]) -> None:
        """Draw; `suspicions` is the evidence against each machine in multiples of what convicts."""

    def say(self, line: str) -> None:
        """Something happened that stays on the screen."""


class _Screen:
    def __init__(self, live: Live) -> None:
        self._live = live

    def show(self, headline: str, found: Standing, suspicions: Mapping[str, float]) -> None:
        machines = {
            name: replace(machine, readings={"evidence": suspicions.get(name, 0.0), **machine.readings})
            for name, machine in found.machines.items()
        }
        verdicts = [
            Text(f"{verdict['level']}: {verdict['message']}", STYLE[str(verdict["level"])])
            for verdict in found.verdicts
        ]
        opinion = verdicts or [Text("detector: nobody is unlike its peers", "green" if found.machines else "dim")]
        drawn, _ = table(replace(found, machines=machines), self._live.console.width)
        self._live.update(Group(Text(headline, "bold"), drawn, *opinion), refresh=True)

    def say(self, line: str) -> None:
        self._live.console.print(line)


class _Lines:
    def __init__(self, console: Console) -> None:
        self._console = console

    def show(self, headline: str, found: Standing, suspicions: Mapping[str, float]) -> None:
        """Where nobody looks, only what happens is written."""

    def say(self, line: str) -> None:
        self._console.print(line, soft_wrap=True)


@contextmanager
def picture(to_stderr: bool = False) -> Iterator[Picture]:
    """A live screen on a terminal, plain lines elsewhere."""
    screen = console(to_stderr)
    if not screen.is_terminal:
        yield _Lines(screen)
        return
    with Live(console=screen, auto_refresh=False, transient=True) as live:
        yield _Screen(live)
