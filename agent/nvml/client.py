"""Client of the child process that calls NVML: it never waits for an answer longer than its caller allows."""

from __future__ import annotations

import importlib.util
import json
import mmap
import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_ANSWER_BYTES = 1 << 20
_ROOT = Path(__file__).resolve().parents[2]


class ChildError(OSError):
    """The child cannot be started, has ended, or says what cannot be understood; the message says which."""


class Child:
    """One child, started at once. Raises ChildError."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._buffer, program = b"", _program()
        shared = os.memfd_create("peerwatch-nvml")
        try:
            os.ftruncate(shared, mmap.PAGESIZE)
            self._where = mmap.mmap(shared, mmap.PAGESIZE)
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", program, str(shared), *paths],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=(shared,),
            )
        except OSError as error:
            raise ChildError(f"the child that reads GPUs cannot be started: {error}") from None
        finally:
            os.close(shared)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        os.set_blocking(self._stdout.fileno(), False)
        self._poll = select.poll()
        self._poll.register(self._stdout.fileno(), select.POLLIN)

    @property
    def pid(self) -> int:
        """Its process number."""
        return self._process.pid

    @property
    def where(self) -> int:
        """What it is at: 0 nothing, 255 starting the library, else the index of a GPU plus one."""
        return self._where[0]

    def ask(self, slow: bool) -> None:
        """Request a reading; `slow`: with what changes slowly. Raises ChildError."""
        try:
            os.write(self._stdin.fileno(), b"s" if slow else b"f")
        except BrokenPipeError:
            raise ChildError(self._ending()) from None

    def answer(self, patience_s: float) -> dict[str, Any] | None:
        """The next answer; None when there is none within that time. Raises ChildError."""
        deadline = time.monotonic() + patience_s
        while b"\n" not in self._buffer:
            if not self._poll.poll(max(deadline - time.monotonic(), 0.0) * 1000):
                return None
            chunk = self._chunk()
            if not chunk:
                raise ChildError(self._ending())
            self._buffer += chunk
            if len(self._buffer) > _ANSWER_BYTES:
                raise ChildError("the child that reads GPUs gives an answer without an end")
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise ChildError("the child that reads GPUs gives an answer that is none")
        return found

    def kill(self) -> None:
        """Have it end; in an uninterruptible call of the driver it does not until that returns."""
        self._process.kill()
        self._stdin.close()
        self._stdout.close()

    def ended(self, patience_s: float = 0.0) -> bool:
        """Whether it has, after waiting so long at most."""
        try:
            self._process.wait(patience_s) if patience_s else self._process.poll()
        except subprocess.TimeoutExpired:
            return False
        return self._process.returncode is not None

    def _chunk(self) -> bytes:
        return os.read(self._stdout.fileno(), 1 << 16)

    def _ending(self) -> str:
        self.ended(0.1)  # its pipes are closed a moment before it is gone
        code = self._process.returncode
        return f"the child that reads GPUs has ended with {code}" if code else "the child that reads GPUs has ended"


def _program() -> str:
    """What a light interpreter is to run; only nvidia-ml-py and the agent's modules are found beside Python's own."""
    binding = importlib.util.find_spec("pynvml")
    if binding is None or binding.origin is None:
        raise ChildError(f"nvidia-ml-py is not installed: {sys.executable} -m pip install nvidia-ml-py")
    paths = [str(_ROOT), str(Path(binding.origin).parent)]
    return f"import sys; sys.path += {paths!r}; from agent.nvml.worker import main; main()"
