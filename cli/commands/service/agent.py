"""`peerwatch agent`: what peerwatch-agent.service starts."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from cli.config import read_settings


def agent(
    config: Annotated[Path | None, typer.Option(help="Configuration file.")] = None,
    store: Annotated[str | None, typer.Option(help="Where readings are kept, instead of the configuration's.")] = None,
    root: Annotated[str | None, typer.Option(help="Where the machine's /sys and /dev are seen, instead of /.")] = None,
) -> None:
    """Read this machine and its training processes until told to stop (SIGTERM or Ctrl-C)."""
    settings = read_settings(config)
    told = msgspec.structs.replace(settings.agent, root=root) if root else settings.agent
    place = store or settings.store
    file = os.memfd_create("settings", 0)
    words = {"store": place, "agent": told, "influxdb": settings.influxdb, "nats": settings.nats}
    os.write(file, msgspec.json.encode(words))
    program = [sys.executable, *["-I"] * sys.flags.isolated, "-m", "agent"]
    os.execv(sys.executable, [*program, told.name, place, f"/proc/self/fd/{file}"])  # noqa: S606 - no shell is wanted
