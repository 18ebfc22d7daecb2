"""`peerwatch agent`: the program of peerwatch-agent.service."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import msgspec
import typer

from cli.config import read_settings, signing_key_file
from cli.options import ConfigOption


def agent(
    config: ConfigOption = None,
    store: Annotated[str | None, typer.Option(help="The store, instead of the configuration's.")] = None,
    root: Annotated[str | None, typer.Option(help="Read /sys and /dev below this folder instead of /.")] = None,
) -> None:
    """Read this machine and its training processes until SIGTERM or Ctrl-C."""
    settings = read_settings(config)
    agent_settings = msgspec.structs.replace(settings.agent, root=root) if root else settings.agent
    place = store or settings.store
    file = os.memfd_create("settings", 0)
    words = {"store": place, "agent": agent_settings, "influxdb": settings.influxdb, "nats": settings.nats}
    words |= {"metrics": settings.metrics, "otlp": settings.otlp}
    words["signing_key_file"] = signing_key_file(place, settings)
    os.write(file, msgspec.json.encode(words))
    program = [sys.executable, *["-I"] * sys.flags.isolated, "-m", "agent"]
    os.execv(sys.executable, [*program, agent_settings.name, place, f"/proc/self/fd/{file}"])  # noqa: S606 - no shell is wanted
