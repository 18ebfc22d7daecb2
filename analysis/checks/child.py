"""One tool as a child process: with a time limit, its output bounded, and everything it started ended with it."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

_MOST_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Ended:
    """How a tool ended."""

    code: int | None
    """Exit code; None: it was cut off by its time limit."""
    output: str
    """Standard output and error together, the first 4 MB."""
    seconds: float


def run_tool(command: Sequence[str], limit_s: float) -> Ended:
    """Run a command without a shell for `limit_s` seconds at most. Raises OSError where it cannot be started."""
    begin = time.monotonic()
    with tempfile.TemporaryFile() as out:
        child = subprocess.Popen(
            list(command), stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code: int | None = child.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with suppress(ProcessLookupError):  # also what the tool left behind
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        out.seek(0)
        text = out.read(_MOST_BYTES).decode(errors="replace")
    return Ended(code, text, time.monotonic() - begin)
