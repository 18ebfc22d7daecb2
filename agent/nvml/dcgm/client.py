"""Client of the child that reads DCGM: it takes in what the child has said, and never waits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent.nvml.library_path import find_library

_NAMES = ("libdcgm.so.4", "libdcgm.so.3")
_BYTES = 1 << 20
_SLOW = 10
"""Health and switches are read once in so many readings: they change seldom, and a check asks the driver much."""
RETRY_S = (2.0, 300.0)
"""Seconds before it is started again: they double."""
STALL_S = 60.0
"""A child that has said nothing for so long hangs in a call of DCGM."""


class Client:
    """One child at a time. Times are seconds of a steady clock."""

    def __init__(self, paths: Sequence[str], period_s: float, activity: bool) -> None:
        self.period_s = max(0.1, period_s)
        self.slow_s = _SLOW * self.period_s
        words = (str(self.period_s), str(self.slow_s), "activity" if activity else "-", *paths)
        self._command = [sys.executable, "-I", "-m", "agent.nvml.dcgm.worker", *words]
        self._child: subprocess.Popen[bytes] | None = None
        self._text, self._heard_at = b"", 0.0
        self._pause_s, self._retry_at = RETRY_S[0], 0.0
        self.error = ""
        """Why nothing is read; empty while something is."""

    def read(self, now_s: float) -> list[dict[str, Any]]:
        """What the child has said since the last call. Raises OSError where none can be started."""
        if self._child is None:
            if now_s < self._retry_at:
                return []
            self._start(now_s)
        return self._take_in(now_s)

    def close(self) -> None:
        """End the child; one in an uninterruptible call of the driver ends when that returns."""
        if self._child is not None:
            self._child.kill()
            assert self._child.stdout is not None
            self._child.stdout.close()
            try:
                self._child.wait(1.0)
            except subprocess.TimeoutExpired:
                self.error = "a child hangs in DCGM and cannot be killed"
            self._child = None

    def _start(self, now_s: float) -> None:
        self._retry_at, self._pause_s = now_s + self._pause_s, min(2 * self._pause_s, RETRY_S[1])
        self._text, self._heard_at = b"", now_s
        self._child = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        assert self._child.stdout is not None
        os.set_blocking(self._child.stdout.fileno(), False)

    def _take_in(self, now_s: float) -> list[dict[str, Any]]:
        assert self._child is not None
        assert self._child.stdout is not None
        ended = self._child.poll() is not None
        self._text += self._child.stdout.read(_BYTES) or b""
        *lines, self._text = self._text.split(b"\n")
        found = [value for line in lines if (value := _object(line)) is not None]
        answers = [value for value in found if "error" not in value]
        if answers:
            self._heard_at, self._pause_s, self.error = now_s, RETRY_S[0], ""
        self.error = next((str(value["error"])[:200] for value in found if "error" in value), self.error)
        if len(self._text) > _BYTES or now_s - self._heard_at > STALL_S:
            self.error = f"DCGM has not answered for {STALL_S:.0f} s" if len(self._text) <= _BYTES else "no answer ends"
            self.close()
        elif ended:
            self.error = self.error or f"the child that reads DCGM has ended with {self._child.returncode}"
            self.close()
        return answers


def find_dcgm(root: Path) -> list[str]:
    """Where the library is installed, the newest version first."""
    return [path for name in _NAMES for path in find_library(root, os.environ, name)]


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
