"""Which functions a mapped file holds, asked of a child that reads it (agent/elf.py), once for each file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from agent.layouts import Layout

_LINE_BYTES = 1 << 20
PATIENCE_S = 120.0
"""How long a child may say nothing: a file system whose server is away may never answer it."""
_LEFT_BEHIND, _DEATH_S = 4, 1.0


@dataclass(frozen=True)
class Answer:
    """What is known of one file so far."""

    key: Any
    """What the asker called the file."""
    identity: str = ""
    inode: int = 0
    path: str = ""
    """The path by which it could be opened."""
    functions: dict[str, int] | None = None
    """File offsets by name; None: this answer brings only the layout, or a failure."""
    semaphores: dict[str, int] = field(default_factory=dict)
    """File offsets, by name, of the counters that switch trace points on."""
    variables: dict[str, list[int]] = field(default_factory=dict)
    """By name, bytes from the beginning of the executable mapping to the variable, and its size."""
    layout: Layout | None = None
    error: str = ""
    """Why the file cannot be read."""
    gone: str = ""
    """Why it cannot be opened: mostly, its process has ended."""


class Libraries:
    """Asks one child at a time about batches of files and never waits for it."""

    def __init__(self, wanted: Sequence[str], layout_for: str = "ncclCommInitRank") -> None:
        self._wanted = list(wanted)
        self._layout_for = layout_for
        self._queue: list[tuple[Any, tuple[str, ...]]] = []
        self._asked: list[tuple[Any, tuple[str, ...]]] = []
        self._child: subprocess.Popen[bytes] | None = None
        self._text = b""
        self._heard = 0.0
        self._left: list[subprocess.Popen[bytes]] = []  # killed, and waiting for a file system for ever

    def ask(self, key: Any, paths: tuple[str, ...]) -> None:
        """Queue a file, to be opened by the first of the paths that works."""
        self._queue.append((key, paths))

    @property
    def busy(self) -> bool:
        """Whether a child is at work, or will be."""
        return self._child is not None or bool(self._queue)

    def poll(self) -> list[Answer]:
        """The answers that have come since the last call."""
        self._left = [child for child in self._left if child.poll() is None]
        if self._child is None:
            self._start()
            return []
        assert self._child.stdout is not None
        ended = self._child.poll() is not None
        while chunk := self._child.stdout.read(1 << 16):
            self._text, self._heard = self._text + chunk, time.monotonic()
        lines = self._text.split(b"\n")
        self._text = lines.pop()[:_LINE_BYTES]
        found = [self._take(json.loads(line)) for line in lines if line]
        if ended or time.monotonic() - self._heard > PATIENCE_S:
            found += self._finish()
            self._start()
        return found

    def close(self) -> None:
        """End the child, whatever it is at."""
        if self._child is not None:
            self._bury(self._child)

    def _start(self) -> None:
        if not self._queue or len(self._left) >= _LEFT_BEHIND:
            return
        self._child = subprocess.Popen(
            [sys.executable, "-I", "-m", "agent.elf"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._asked, self._queue = self._queue, []  # only now: where no child can be started they wait on
        request = {"files": [paths for _, paths in self._asked], "wanted": self._wanted, "layout_for": self._layout_for}
        try:
            with self._child.stdin as request_pipe:
                request_pipe.write(json.dumps(request).encode())
        except BrokenPipeError:
            self._text = b""  # it died at once: the next poll finds that out and says so
        os.set_blocking(self._child.stdout.fileno(), False)
        self._heard = time.monotonic()

    def _bury(self, child: subprocess.Popen[bytes]) -> int | None:
        """Its exit code; None for one that cannot be killed now: it ends when the file system answers."""
        assert child.stdout is not None
        self._child = None
        child.kill()
        try:
            child.wait(_DEATH_S)
        except subprocess.TimeoutExpired:
            self._left.append(child)
        child.stdout.close()
        return child.returncode

    def _take(self, line: dict[str, Any]) -> Answer:
        key = self._asked[0][0]
        if line.pop("done", False):
            self._asked.pop(0)
        return Answer(key, **line)

    def _finish(self) -> list[Answer]:
        assert self._child is not None
        code, self._text = self._bury(self._child), b""
        left, self._asked = self._asked, []
        if not left:
            return []
        # The child died over the first file that it did not answer for; the others get another one.
        self._queue = left[1:] + self._queue
        why = ": its file system does not answer" if code is None else f" or too much memory (exit {code})"
        return [Answer(left[0][0], error=f"reading it took too long{why}")]
