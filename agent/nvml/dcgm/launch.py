"""Executes a program of the distribution without any of our rights, and lets it end with the agent.

python -I -m agent.nvml.dcgm.launch PROGRAM ARGUMENTS
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from agent.system.rights import give_up

_PR_SET_PDEATHSIG = 1


def main() -> int:
    """Become the program; exit code 127 where it cannot be executed."""
    give_up()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        os.execv(sys.argv[1], sys.argv[1:])  # noqa: S606 - no shell is wanted
    except OSError as error:
        sys.stdout.write(f"{sys.argv[1]}: {error.strerror}\n")
    return 127


if __name__ == "__main__":
    sys.exit(main())
