"""Reads the sources: one after another on one thread, for a thread that wakes up costs more than most readings.

A source that is slow has a thread of its own, and one that hangs keeps the thread that it hangs on: the others go on.
No thread ends before all do: a source's child may be bound to the thread that started it (prctl(2), PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import partial
from queue import SimpleQueue

from agent.context import Source, SourceUnavailableError
from agent.system import out_of_memory
from store.schema.sample import Sample, Value

log = logging.getLogger(__name__)

WorkerQueue = SimpleQueue[Callable[[], None] | None]
"""What one thread is to do; None ends it."""
PATIENCE = 0.25
"""Share of the time limit after which the others wait no longer behind a source."""


class Worker:
    """One source, and how it fares."""

    def __init__(self, name: str, source: Source) -> None:
        self.name, self.source = name, source
        self.running: Future[list[Sample]] | None = None
        self.started = self.took = 0.0
        """When the last reading began (monotonic seconds), and how long the last one that ended took."""
        self.lane: WorkerQueue | None = None
        """A thread of its own, for when it is slow."""
        self.failures = 0
        self.error = ""

    def read(self, now: int) -> None:
        """Read the source; what it brought, or what went wrong, is there for `collect`."""
        assert self.running is not None
        self.started = time.monotonic()
        try:
            samples, failure = list(self.source.read(now)), None
        except MemoryError:
            out_of_memory.end()
        except BaseException as error:  # it is collect's to say what went wrong
            samples, failure = [], error
        self.took = time.monotonic() - self.started
        if failure is None:
            self.running.set_result(samples)
        else:
            self.running.set_exception(failure)

    def collect(self, deadline: float) -> list[Sample]:
        """What the reading brought by the deadline, and a row on how it went."""
        assert self.running is not None
        reading, samples = self.running, list[Sample]()
        before, self.error = self.error, ""
        try:
            samples = reading.result(max(deadline - time.monotonic(), 0.0))
            self.running = None
        except FutureTimeoutError as error:
            self.error = f"still reading after {time.monotonic() - self.started:.1f} s"
            if reading.done():  # the time-out was the source's own
                self.error, self.running = f"{type(error).__name__}: {error}", None
        except Exception as error:  # a source may fail in any way it likes: it is named, counted, and the rest go on
            self.error = str(error) if isinstance(error, SourceUnavailableError) else f"{type(error).__name__}: {error}"
            self.running = None
        self.failures += bool(self.error)
        if self.error and self.error.split(" after")[0] != before.split(" after")[0]:
            log.warning("source %s: %s", self.name, self.error)
        values: dict[str, Value] = {
            "source": self.name,
            "success": float(not self.error),
            "duration_seconds": time.monotonic() - self.started if self.running else self.took,
            "failures_total": self.failures,
            "error": self.error or None,
            "unavailable": getattr(self.source, "unavailable_reason", "") or None,
        }
        return [*samples, Sample("source", values)]

    def close(self) -> None:
        """Close the source; one that hangs is left behind, it ends with the process."""
        if self.running is None or self.running.done():
            self.source.close()


class _ReadCycle:
    """One reading of several sources, which threads take one by one."""

    def __init__(self, now: int, workers: Sequence[Worker]) -> None:
        self.now = now
        self.waiting: deque[Worker] = deque()
        self.at: Worker | None = None
        """The worker that this lane's thread took last."""
        self.over = threading.Event()
        self._left, self._turn = len(workers), 0
        self._lock = threading.Lock()
        for worker in workers:
            worker.started, worker.running = time.monotonic(), Future()

    def work(self) -> None:
        """Read what waits until nothing does, or another thread takes over."""
        turn = self._turn
        while (worker := self._next(turn)) is not None:
            self.read(worker)

    def detach_slow(self) -> Worker | None:
        """Leave the thread to the source that blocks it and return that source; None if none waits behind it."""
        with self._lock:
            if not self.waiting or self.at is None:
                return None
            relieved, self.at = self.at, None
            self._turn += 1
            return relieved

    def _next(self, turn: int) -> Worker | None:
        with self._lock:
            if turn != self._turn or not self.waiting:
                return None
            self.at = self.waiting.popleft()
            return self.at

    def read(self, worker: Worker) -> None:
        """Read one source."""
        worker.read(self.now)
        with self._lock:
            self._left -= 1
            if not self._left:
                self.over.set()


class Reader:
    """All sources of an agent."""

    def __init__(self, workers: Iterable[Worker] = ()) -> None:
        self.workers = list(workers)
        self._shared = _begin()

    def read(self, now: int, limit_s: float) -> list[Sample]:
        """What all sources brought within the limit, and a row on how each went."""
        deadline, patience = time.monotonic() + limit_s, PATIENCE * limit_s
        idle = [worker for worker in self.workers if worker.running is None]
        current = _ReadCycle(now, idle)
        for worker in idle:
            if worker.took < patience:
                current.waiting.append(worker)
            else:
                worker.lane = worker.lane or _begin()
                worker.lane.put(partial(current.read, worker))
        self._shared.put(current.work)
        while idle and not current.over.wait(min(patience, max(deadline - time.monotonic(), 0.0))):
            if time.monotonic() >= deadline:
                break
            if (slow := current.detach_slow()) is not None:  # another thread goes on, this one is that source's own
                slow.lane, self._shared = self._shared, slow.lane or _begin()
                self._shared.put(current.work)
        return [sample for worker in self.workers for sample in worker.collect(deadline)]

    def close(self) -> None:
        """Close the sources and end the threads."""
        for worker in self.workers:
            try:
                worker.close()
            except (OSError, ValueError) as error:
                log.warning("source %s did not close: %s", worker.name, error)
        for lane in (self._shared, *(worker.lane for worker in self.workers)):
            if lane is not None:
                lane.put(None)


def _begin() -> WorkerQueue:
    lane: WorkerQueue = SimpleQueue()
    try:
        threading.Thread(target=_serve, args=(lane,), name="sources", daemon=True).start()
    except RuntimeError:  # no thread can be started
        out_of_memory.end()
    return lane


def _serve(lane: WorkerQueue) -> None:
    while (work := lane.get()) is not None:
        work()
