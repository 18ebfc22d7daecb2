"""The command line of an agent that runs as a child of this command."""

from __future__ import annotations

import sys
from pathlib import Path


def agent_command(place: str | Path, config: Path | None = None, root: Path | None = None) -> list[str]:
    """The command line of an agent that writes to this store and reads /sys and /dev below `root`."""
    command = [sys.executable, "-I", "-m", "cli.main", "agent", "--store", str(place)]
    command += ["--config", str(config)] if config else []
    return command + (["--root", str(root)] if root else [])
