"""A child process for work that takes a while: the agent asks it, and never waits for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

ANSWER_BYTES = 4 << 20
_LEFT_BEHIND, _DEATH_S = 4, 1.0


class ChildTask:
    """One child of one module at a time.

    It is killed after `patience_s` seconds over one request, or with `per_line` without another line.
    """

    def __init__(self, module: str, patience_s: float = 60.0, per_line: bool = False) -> None:
        self._module, self.patience_s, self._per_line = module, patience_s, per_line
        self.exit_code: int | None = None
        """Of the last child; None: it could not be killed."""
        self._child: subprocess.Popen[bytes] | None = None
        self._left: list[subprocess.Popen[bytes]] = []  # killed, but still waiting for a file system
        self._text, self._begun = b"", 0.0

    @property
    def under_way(self) -> bool:
        """Whether an answer may still come."""
        return self._child is not None

    @property
    def ready(self) -> bool:
        """Whether it can be asked now."""
        self._left = [child for child in self._left if child.poll() is None]
        return self._child is None and len(self._left) < _LEFT_BEHIND

    def ask(self, request: Mapping[str, Any]) -> None:
        """Start the child and hand it a request. Raises OSError where none can be started."""
        self._child = subprocess.Popen(
            [sys.executable, "-I", "-m", self._module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        with suppress(BrokenPipeError), self._child.stdin as pipe:  # if it died at once, the next poll finds that out
            pipe.write(json.dumps(request).encode())
        os.set_blocking(self._child.stdout.fileno(), False)
        self._text, self._begun = b"", time.monotonic()

    def poll(self) -> list[dict[str, Any]]:
        """The objects that it has printed since the last call, one a line."""
        if self._child is None:
            return []
        assert self._child.stdout is not None
        ended = self._child.poll() is not None
        while (chunk := self._child.stdout.read(1 << 16)) and len(self._text) < ANSWER_BYTES:
            self._text += chunk
            if self._per_line:
                self._begun = time.monotonic()
        *lines, self._text = self._text.split(b"\n")
        if ended or time.monotonic() - self._begun > self.patience_s or len(self._text) >= ANSWER_BYTES:
            self.close()
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        """End the child; one that cannot be killed now is left behind."""
        if self._child is None:
            return
        child, self._child = self._child, None
        assert child.stdout is not None
        child.kill()
        child.stdout.close()
        try:
            child.wait(_DEATH_S)
        except subprocess.TimeoutExpired:
            self._left.append(child)
        self.exit_code = child.returncode
