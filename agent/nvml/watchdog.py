"""The watchdog over the child that calls NVML: starts it, kills one that hangs, and knows how NVML fares.

A call that hangs costs only the readings of GPUs. A child that does not even die, since it waits for the
driver in an uninterruptible sleep, is left behind; another one is tried, but not more and more of them.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agent.nvml.client import Child, ChildError
from agent.nvml.library_path import find_library
from store.schema.time import SECOND

log = logging.getLogger(__name__)

STALL_NS = 8 * SECOND
"""Silence that is none of the driver's usual pauses."""
START_NS = 60 * SECOND
"""Without persistence mode the driver wakes all GPUs first, which takes its time."""
_VAIN = 3
"""Readings that must have found no answer: a clock that was set forward is no silence."""
_LOOK_NS = 30 * SECOND
_LEAST_NS, _MOST_NS = 2 * SECOND, 60 * SECOND
_LEFT_BEHIND = 2
_NO_LIBRARY = "there is no libnvidia-ml.so.1"


class Watch:
    """Times are Unix ns; no reading waits longer than `patience_s`, and none at all while NVML does not answer."""

    def __init__(self, root: Path, patience_s: float, start: Callable[[list[str]], Child] = Child) -> None:
        self._root, self._patience_s, self._start = root, patience_s, start
        self._child: Child | None = None
        self._left: list[Child] = []
        self._asked: int | None = None  # when the answer that is owed was asked for
        self._asked_at = 0.0
        self._vain = 0
        self._greeted = False
        self._retry: int | None = None
        self._pause_ns = _LEAST_NS
        self.found = False
        """Whether there is a library at all."""
        self.stalled = False
        self.where: int | None = None
        """NVML's index of the GPU with the call that hung; None: no single one."""
        self.error = ""
        """Why there are no readings; empty while there are."""
        self.failures = 0
        """Children that were killed or have ended."""
        self.seconds: float | None = None
        """How long the last answer took."""

    def read(self, now: int, slow: bool) -> list[dict[str, Any]]:
        """What the child has said since the last reading and to this one."""
        self._left = [child for child in self._left if not child.ended()]
        if self._asked is not None:
            self._asked = min(self._asked, now)  # a clock that was set back is no reason to wait
        try:
            if self._child is None and not self._begin(now):
                return []
            answers = self._collect(now, slow)
        except ChildError as error:
            self._give_up(now, str(error))
            return []
        limit = STALL_NS if self._greeted else START_NS
        if not answers and self._asked is not None:
            self._vain += 1
            if now - self._asked >= limit and self._vain >= _VAIN:
                self._stall(now, (now - self._asked) // SECOND)
        return answers

    def close(self) -> None:
        """End the child; one that does not die is left behind."""
        if self._child is not None:
            self._child.kill()
            self._child.ended(1.0)
            self._child = None

    def _begin(self, now: int) -> bool:
        """Start a child, where it is time and there is a library."""
        if self._retry is not None and 0 < self._retry - now <= _MOST_NS:
            return False
        self._retry = now + _LOOK_NS
        if len(self._left) >= _LEFT_BEHIND:
            self.error = f"{len(self._left)} children hang in the driver and cannot be killed"
            return False
        paths = find_library(self._root, os.environ)
        self.found = bool(paths)
        if not paths:
            if self.error != _NO_LIBRARY:
                log.info("%s: looking again every %d s", _NO_LIBRARY, _LOOK_NS // SECOND)
            self.error = _NO_LIBRARY
            return False
        self._child = self._start(paths)
        self._greeted, self._asked, self._asked_at, self._vain = False, now, time.monotonic(), 0
        return True

    def _collect(self, now: int, slow: bool) -> list[dict[str, Any]]:
        child, answers = self._child, list[dict[str, Any]]()
        assert child is not None
        while self._asked is not None and (answer := child.answer(0.0)) is not None:
            self._note(now, answer)
            answers.append(answer)
        if self._asked is None:
            child.ask(slow)
            self._asked, self._asked_at, self._vain = now, time.monotonic(), 0
            answer = child.answer(self._patience_s)
            if answer is not None:
                self._note(now, answer)
                answers.append(answer)
        return answers

    def _note(self, now: int, answer: dict[str, Any]) -> None:
        if "gone" in answer:
            raise ChildError(str(answer["gone"]))
        self.seconds = time.monotonic() - self._asked_at
        if self._greeted:  # a child that has only said hello may hang at the first reading
            self.stalled, self.where, self.error = False, None, ""
            self._pause_ns = _LEAST_NS
        self._asked, self._greeted = None, True

    def _stall(self, now: int, seconds: int) -> None:
        assert self._child is not None
        at = self._child.where
        if not self.stalled:
            self.where = at - 1 if 0 < at < 255 else None
        self.stalled = True
        self._give_up(now, f"NVML has not answered for {seconds} s")

    def _give_up(self, now: int, reason: str) -> None:
        self.failures += 1
        if self.error != reason:
            log.warning("GPUs cannot be read: %s", reason)
        self.error = reason
        if self._child is not None:
            self._child.kill()
            if not self._child.ended(0.05):
                self._left.append(self._child)
        self._child, self._asked = None, None
        self._retry = now + self._pause_ns
        self._pause_ns = min(2 * self._pause_ns, _MOST_NS)
