"""A child that is sent for something that takes a while, seen from the agent: it is asked and never waited for."""

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
_LEFT_BEHIND, _DEATH_S = 2, 1.0


class ChildTask:
    """One child of one module at a time; it is given `patience_s` seconds over one request."""

    def __init__(self, module: str, patience_s: float = 60.0) -> None:
        self._module, self._patience_s = module, patience_s
        self._child: subprocess.Popen[bytes] | None = None
        self._left: list[subprocess.Popen[bytes]] = []  # killed, and waiting for a file system for ever
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
        *lines, self._text = self._text.split(b"\n")
        if ended or time.monotonic() - self._begun > self._patience_s or len(self._text) >= ANSWER_BYTES:
            self.close()
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        """End the child, whatever it is at; one that cannot be killed now is left behind."""
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
