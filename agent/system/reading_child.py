"""What a child that reads a library for the agent does: give up its rights, end with the agent, answer in lines."""

from __future__ import annotations

import ctypes
import json
import os
import signal
from typing import Any

from agent.system.rights import give_up

_PR_SET_PDEATHSIG = 1


def settle() -> None:
    """Give up all rights; end with the parent, and not by Ctrl-C: that is for the agent, which ends its children."""
    give_up()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def tell(value: dict[str, Any]) -> None:
    """Write a line of JSON to stdout, whole. Raises BrokenPipeError: the agent has closed it."""
    line = json.dumps(value, separators=(",", ":"), allow_nan=False).encode() + b"\n"
    while line:
        line = line[os.write(1, line) :]
