"""The child that takes stacks, seen from the agent: it is asked and never waited for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from agent.processes import Process

PATIENCE_S = 60.0
"""How long a child may take over all processes of a machine."""
ANSWER_BYTES = 4 << 20
_LEFT_BEHIND, _DEATH_S = 2, 0.2


def spy_path() -> str:
    """Where py-spy is installed beside this program; the file need not be there."""
    return str(Path(sys.prefix, "bin", "py-spy"))


class StackProcess:
    """One child at a time."""

    def __init__(self, spy: str) -> None:
        self._spy = spy
        self._child: subprocess.Popen[bytes] | None = None
        self._left: list[subprocess.Popen[bytes]] = []  # killed, and waiting for a file system for ever
        self._asked: set[int] = set()
        self._text, self._begun = b"", 0.0

    @property
    def ready(self) -> bool:
        """Whether it can be asked now."""
        self._left = [child for child in self._left if child.poll() is None]
        return self._child is None and len(self._left) < _LEFT_BEHIND

    def ask(self, processes: Iterable[Process]) -> None:
        """Have the stacks of these processes taken. Raises OSError where no child can be started."""
        self._child = subprocess.Popen(
            [sys.executable, "-I", "-m", "agent.stack_child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        wanted = [(process.pid, process.start, process.stack) for process in processes]
        with suppress(BrokenPipeError), self._child.stdin as pipe:  # if it died at once, the next poll finds that out
            pipe.write(json.dumps({"spy": self._spy, "processes": wanted}).encode())
        os.set_blocking(self._child.stdout.fileno(), False)
        self._asked = {pid for pid, _, _ in wanted}
        self._text, self._begun = b"", time.monotonic()

    def poll(self) -> list[dict[str, Any]]:
        """What has come since the last call: an object a process, as stack_child makes them."""
        if self._child is None:
            return []
        assert self._child.stdout is not None
        ended = self._child.poll() is not None
        while (chunk := self._child.stdout.read(1 << 16)) and len(self._text) < ANSWER_BYTES:
            self._text += chunk
        *lines, self._text = self._text.split(b"\n")
        found = [json.loads(line) for line in lines]
        self._asked -= {answer["pid"] for answer in found}
        if ended or time.monotonic() - self._begun > PATIENCE_S or len(self._text) >= ANSWER_BYTES:
            self.close()
            found += [{"pid": pid, "form": "none", "error": "taking stacks was cut off"} for pid in sorted(self._asked)]
        return found

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
