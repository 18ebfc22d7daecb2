"""What a running nv-hostengine measures, through `dcgmi dmon`, which prints one line a GPU and period.

The fields are those of dcgm_fields.h; the index (52) says which GPU of NVML it is, since DCGM counts its own way.
https://docs.nvidia.com/datacenter/dcgm/latest/user-guide/feature-overview.html
"""

from __future__ import annotations

import os
import re
import subprocess
import sys

FIELDS = {
    1001: "graphics_active_ratio",
    1002: "sm_active_ratio",
    1003: "sm_occupancy_ratio",
    1004: "tensor_active_ratio",
    1005: "dram_active_ratio",
    1006: "fp64_active_ratio",
    1007: "fp32_active_ratio",
    1008: "fp16_active_ratio",
}
"""Field -> column of the table `gpu`; the kinds of GPUs lack some of them, which dcgmi shows as N/A."""
_INDEX = 52
_LINE = re.compile(r"\s*GPU\s+[0-9]{1,4}\s+(\S.*)")
_BYTES, _GPUS = 1 << 16, 64
"""The most that is read at once, and the most GPUs that are believed."""
RETRY_S = (2.0, 300.0)
"""Seconds before it is started again: they double."""


def parse_line(line: str) -> tuple[str, dict[str, float]] | None:
    """NVML's index and the columns of one line; None for a heading, another kind of entity, or another form."""
    found = _LINE.fullmatch(line)
    if found is None:
        return None
    index, *words = found[1].split()
    if len(words) != len(FIELDS) or not index.isdecimal() or len(index) > 3:
        return None
    values = {}
    for column, word in zip(FIELDS.values(), words, strict=True):
        try:
            value = float(word)
        except ValueError:  # N/A
            continue
        if 0.0 <= value <= 1.0:  # DCGM's blank values are far beyond
            values[column] = value
    return str(int(index)), values


class Dmon:
    """One child that prints until it is closed; reading it never waits."""

    def __init__(self, program: str, period_s: float) -> None:
        fields = ",".join(map(str, (_INDEX, *FIELDS)))
        milliseconds = str(max(100, round(1000 * period_s)))
        self._command = [program, "dmon", "-e", fields, "-d", milliseconds]
        self._hold_s = 2.5 * period_s
        self._child: subprocess.Popen[bytes] | None = None
        self._text = b""
        self._pause_s, self._retry_at = RETRY_S[0], 0.0
        self._newest: dict[str, tuple[float, dict[str, float]]] = {}
        self.error = ""
        """Why nothing is measured: the last thing that dcgmi said; empty while it measures."""

    def read(self, now_s: float) -> dict[str, dict[str, float]]:
        """By NVML's index, what was measured within the last periods; `now_s` is a steady clock. Raises OSError."""
        if self._child is None:
            if now_s < self._retry_at:
                return {}
            self._start(now_s)
        self._take_in(now_s)
        return {index: values for index, (at, values) in self._newest.items() if now_s - at <= self._hold_s}

    def close(self) -> None:
        """End the child."""
        if self._child is not None:
            self._child.kill()
            self._child.wait(1.0)
            assert self._child.stdout is not None
            self._child.stdout.close()
            self._child = None

    def _start(self, now_s: float) -> None:
        self._retry_at, self._pause_s = now_s + self._pause_s, min(2 * self._pause_s, RETRY_S[1])
        self._text, self._newest = b"", {}
        self._child = subprocess.Popen(
            [sys.executable, "-I", "-m", "agent.nvml.dcgm.launch", *self._command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert self._child.stdout is not None
        os.set_blocking(self._child.stdout.fileno(), False)

    def _take_in(self, now_s: float) -> None:
        assert self._child is not None
        assert self._child.stdout is not None
        ended = self._child.poll() is not None
        self._text += self._child.stdout.read(_BYTES) or b""
        *lines, self._text = self._text.split(b"\n")
        self._text = self._text[-_BYTES:]
        for line in lines:
            words = line.decode(errors="replace")
            if found := parse_line(words):
                if len(self._newest) < _GPUS or found[0] in self._newest:
                    self._newest[found[0]] = now_s, found[1]
                self._pause_s, self.error = RETRY_S[0], ""
            elif words.strip() and not words.lstrip().startswith(("#", "ID")):
                self.error = " ".join(words.split())[:200]
        if ended:
            self.error = self.error or f"dcgmi has ended with code {self._child.returncode}"
            self.close()


def find_program() -> str:
    """Where dcgmi is installed; empty where it is not."""
    folders = [*os.environ.get("PATH", "").split(os.pathsep), "/usr/bin", "/usr/local/dcgm/bin"]
    places = (os.path.join(folder, "dcgmi") for folder in folders if os.path.isabs(folder))
    return next((place for place in places if os.access(place, os.X_OK)), "")
