"""An agent without memory ends, and systemd starts it again: what goes on half would be blind and say nothing."""

from __future__ import annotations

import os
from typing import NoReturn

_LINE = b"peerwatch: out of memory, the agent ends: raise its limit (MemoryMax of the unit, ulimit -v)\n"


def end() -> NoReturn:
    """End at once with code 1: threads and files may no longer be had to end in order; what is stored stays stored."""
    os.write(2, _LINE)
    os._exit(1)
