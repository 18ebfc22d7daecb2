"""The agent's loop: reads every source once a period, hands batches to the store. The one place that asks a clock."""

from __future__ import annotations

import importlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol

from agent.config import AgentConfig
from agent.context import Context, Source, SourceUnavailableError
from agent.probes.attachments import Attachments
from agent.probes.hit_cost import measure
from agent.process.procfs import Processes
from agent.sampling.reader import Reader, Worker
from agent.sampling.zoom import Zoom
from agent.sampling.zoom_bounds import PROFILE, STACKS
from agent.stacks.profile_window import ProfileWindow
from agent.stacks.rounds import StackRounds
from agent.system.disk_cache import DiskCache
from agent.system.file_identity import allow_many
from agent.system.left_out import LeftOut
from agent.system.service_manager import Alive, ignore
from bpf.loader import BpfError, Kernel, load
from store.schema.catalogue import TABLES
from store.schema.contract import UnfitError
from store.schema.sample import Batch, Sample, Value
from store.zoom_requests import ZoomRequestSource

log = logging.getLogger(__name__)

PROBED = ("nccl", "cuda")
"""Sources that count in the kernel what every process calls, in the order of their .bpf.c files."""
WATCHED = ("scheduler", "python")
"""Sources that count what the processes do that the agent names, by their .bpf.c files."""
_HARMLESS = "ncclCommGetAsyncError"
"""The program that measures the cost of a hit: it counts nothing of a process without communicators, which we are."""
BACKLOG = 600
"""Batches that wait while the store cannot be written: ten minutes at one a second."""
PRUNE_PERIOD_S = 60.0
OPEN_PERIOD_S = 60.0
"""How often it is tried to open a source that was not to be had."""

_IMAGE_BYTES, _IMAGES = 1 << 20, 8
"""Of the probes' compiled images: the most that one takes, and how many are cached."""


class Sink(Protocol):
    """The side of a store that the agent sees."""

    def write(self, batches: Iterable[Batch]) -> None:
        """Keep the batches. Raises OSError or ValueError when it cannot."""


@dataclass
class Outbox:
    """Batches on their way to the store; the oldest are dropped, and counted, when it stays shut."""

    sink: Sink
    waiting: deque[Batch] = field(default_factory=deque)
    dropped: int = 0
    shut: bool = False
    unfit: str = ""
    """Why rows were left out that no store can hold; empty: none was."""

    def send(self, batch: Batch) -> None:
        """Write what waits, this batch included."""
        self.waiting.append(batch)
        while len(self.waiting) > BACKLOG:
            self.waiting.popleft()
            self.dropped += 1
        try:
            self._write()
        except (OSError, ValueError) as error:
            if not self.shut:
                log.error("the store cannot be written, readings wait: %s", error)
            self.shut = True
            return
        if self.shut:
            log.info("the store can be written again; %d batches were dropped", self.dropped)
        self.shut = False
        self.waiting.clear()

    def _write(self) -> None:
        """Write what waits; a table with rows that no store can hold is left out, so that it stops no other."""
        try:
            self.sink.write(tuple(self.waiting))
        except UnfitError:
            self.waiting = deque(part for batch in self.waiting for part in _by_table(batch))
            while self.waiting:
                try:
                    self.sink.write((self.waiting[0],))
                except UnfitError as error:
                    self.dropped += 1
                    if not self.unfit:
                        log.error("rows of table %s are left out: %s", self.waiting[0].samples[0].table, error)
                    self.unfit = str(error)
                self.waiting.popleft()


def _by_table(batch: Batch) -> Iterator[Batch]:
    tables: dict[str, list[Sample]] = {}
    for sample in batch.samples:
        tables.setdefault(sample.table, []).append(sample)
    return (replace(batch, samples=tuple(samples)) for samples in tables.values())


class UnavailableSource:
    """Stands for a source that could not be opened, until it can be."""

    def __init__(self, begin: Callable[[], Source], why: Exception) -> None:
        self._begin, self._why = begin, why
        self._source: Source | None = None
        self._tried = time.monotonic()

    def read(self, now: int) -> Iterable[Sample]:
        """The source's samples. Raises what it cannot be opened for."""
        if self._source is None and time.monotonic() - self._tried >= OPEN_PERIOD_S:
            self._tried = time.monotonic()
            try:
                self._source = self._begin()
            except (SourceUnavailableError, OSError, ValueError) as error:
                self._why = error
        if self._source is None:
            raise self._why.with_traceback(None)  # or each raising would add to it
        return self._source.read(now)

    def close(self) -> None:
        """Close the source if it was opened."""
        if self._source is not None:
            self._source.close()


def load_probes() -> Kernel:
    """All probes, loaded; they are compiled at the first start on a kernel only. Raises BpfError."""
    return load((*PROBED, *WATCHED), DiskCache("probes", _IMAGE_BYTES, _IMAGES))


def open_context(config: AgentConfig) -> Context:
    """Load the probes that the configured sources need; without them, a context that says why."""
    wanted = [name for name in PROBED if name in config.sources]
    if not wanted:
        return Context(config)
    processes = Processes()
    try:
        kernel = load_probes()
    except BpfError as error:
        return Context(config, no_probes=str(error), processes=processes)
    programs = {name: fd for name, fd in kernel.programs.items() if name.startswith(tuple(wanted))}
    left_out = LeftOut()
    attachments = Attachments(programs, processes, config.cuda_calls, left_out)
    cost = measure(kernel.programs[_HARMLESS])
    return Context(config, kernel, attachments, processes=processes, left_out=left_out, cost=cost)


def open_worker(context: Context, name: str) -> Worker:
    """One source. Raises SourceUnavailableError, OSError or ValueError where it cannot be had."""
    source: Source = importlib.import_module(f"agent.sources.{name}").open_source(context)
    return Worker(name, source)


def open_reader(context: Context) -> Reader:
    """The configured sources; one that cannot be had fails with its reason, and is tried again now and then."""
    return Reader(_worker(context, name) for name in context.config.sources)


def _worker(context: Context, name: str) -> Worker:
    try:
        return open_worker(context, name)
    except (SourceUnavailableError, OSError, ValueError) as error:
        return Worker(name, UnavailableSource(lambda: open_worker(context, name).source, error))


def read_once(reader: Reader, now: int, machine: str, limit_s: float) -> Batch:
    """One reading of all sources within the time limit."""
    return Batch(machine, now, tuple(_joined(reader.read(now, limit_s))))


def _joined(samples: Iterable[Sample]) -> Iterator[Sample]:
    """Rows of equal keys as one: several sources may tell of one device. Events stay as they are."""
    rows: dict[tuple[Value, ...], dict[str, Value]] = {}
    for sample in samples:
        if sample.table == "event" or sample.table not in TABLES or sample.time is not None:
            yield sample
        else:
            key = (sample.table, *map(sample.values.get, TABLES[sample.table].keys))
            rows.setdefault(key, {}).update(sample.values)
    yield from (Sample(str(key[0]), values) for key, values in rows.items())


def open_zoom(config: AgentConfig, orders: ZoomRequestSource | None, context: Context | None = None) -> Zoom | None:
    """The zoom of this agent; None where no detector can ask for it, or the configuration forbids it.

    Stacks are those of the training processes that `context` knows.
    """
    if orders is None or not (config.zoom_hertz or config.profile_seconds_per_hour):
        return None

    # Nothing is shared with the usual reading: what counts since the last reading has a last reading of its own.
    def opened(name: str) -> Source:
        if name == STACKS and context is not None:
            return StackRounds(context.training)
        if name == PROFILE and context is not None:
            return ProfileWindow(context.training)
        return open_worker(Context(config), name).source

    return Zoom(config, orders, opened)


def run(
    config: AgentConfig,
    sink: Sink,
    stop: threading.Event,
    prune: Callable[[int], None] | None = None,
    orders: ZoomRequestSource | None = None,
    alive: Alive = ignore,
) -> None:
    """Read and write until `stop` is set. `prune` is called once a minute with the time (Unix ns).

    `alive` is called after each reading, once that is written or waits for the store.
    """
    allow_many()
    context = open_context(config)
    reader = open_reader(context)
    outbox, zoom = Outbox(sink), open_zoom(config, orders, context)
    due = pruned = time.monotonic()
    log.info("%s: sources %s", config.name, ", ".join(worker.name for worker in reader.workers) or "none")
    try:
        while not stop.is_set():
            batch = read_once(reader, time.time_ns(), config.name, config.limit_seconds)
            closer = zoom.take() if zoom else ()
            outbox.send(replace(batch, samples=(*batch.samples, *closer)) if closer else batch)
            alive(_status(reader, outbox))
            if prune and time.monotonic() - pruned >= PRUNE_PERIOD_S:
                pruned = time.monotonic()
                prune(time.time_ns())
            # A reading that took longer than a period skips the ticks it missed.
            due += config.period_seconds * max(1, -(-(time.monotonic() - due) // config.period_seconds))
            stop.wait(max(due - time.monotonic(), 0.0))
    finally:
        if zoom:
            zoom.close()
        close(reader, context)


def _status(reader: Reader, outbox: Outbox) -> str:
    failing = [worker.name for worker in reader.workers if worker.error]
    words = f"reading {len(reader.workers) - len(failing)} of {len(reader.workers)} sources"
    words += f" (failing: {', '.join(failing)})" if failing else ""
    return f"{words}; {'the store is shut, readings wait' if outbox.shut else 'readings are written'}"


def close(reader: Reader, context: Context) -> None:
    """Let go of everything."""
    reader.close()
    if context.kernel is not None:
        context.kernel.close()
