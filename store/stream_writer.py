"""From a stream to a store: what is taken is written, then settled, so that a kill at any moment loses no reading.

A message that may have been written before is compared with what the store holds, key by key. InfluxDB needs no such
look: a row written again takes its own place.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from store.columns import key_columns
from store.contract import Store, StoreError
from store.influx import Influx
from store.influx_sender import POST_BYTES, UnsentError, post
from store.line_protocol import unpack
from store.line_reader import batches_of
from store.nats_stream import Message, Stream
from store.sample import Batch, Sample, Value

log = logging.getLogger(__name__)

AT_ONCE = 500
"""Messages taken at once."""
LOOK_S = 10.0
"""How often it is looked whether the stream has dropped what nobody had taken."""

Key = tuple[Value, ...]


class Writer:
    """Carries messages to one store. Writers of one name share the work; each other name is given everything."""

    def __init__(self, stream: Stream, store: Store, name: str) -> None:
        self.stream, self.store, self.name = stream, store, name
        self.written = self.refused = self.lost = 0
        """Messages written, lines that the store refused, messages that the stream dropped before they were taken."""
        self._looked = -LOOK_S

    def step(self, wait_s: float) -> int:
        """Write what waits, or what comes within so many seconds; returns how many messages. Raises StoreError."""
        self._look()
        messages = self.stream.take(self.name, AT_ONCE, wait_s)
        for some in _portions(messages):
            self._write(some)
            self.stream.settle(some)
            self.written += len(some)
        return len(messages)

    def _write(self, messages: Sequence[Message]) -> None:
        if isinstance(self.store, Influx):
            self._pass_on(self.store, messages)
            return
        fresh = [batch for message in messages if not message.again for batch in self._batches(message)]
        again = [batch for message in messages if message.again for batch in self._batches(message)]
        if again:
            again = list(_missing(self.store, again))
        if fresh or again:
            self.store.write([*again, *fresh])

    def _batches(self, message: Message) -> list[Batch]:
        try:
            return batches_of(unpack(message.body))
        except StoreError as error:
            self._refuse(1, f"message {message.sequence}: {error}")
            return []

    def _pass_on(self, store: Influx, messages: Sequence[Message]) -> None:
        """Lines as they are, packed as they are."""
        answer = store.server.write(b"".join(message.body for message in messages))
        try:
            if answer.status in (400, 413, 422):
                for message in messages:
                    if refused := post(store.server, unpack(message.body)):
                        self._refuse(len(refused), refused[0][1])
            elif not answer.good:
                raise UnsentError(answer)
        except UnsentError as error:
            raise StoreError(store.server.explain(error.answer)) from error

    def _refuse(self, lines: int, why: str) -> None:
        self.refused += lines
        log.error("%d lines are refused, the first since %s", lines, why)

    def _look(self) -> None:
        if time.monotonic() - self._looked < LOOK_S:
            return
        self._looked = time.monotonic()
        if lost := self.stream.standing(self.name).lost:
            self.lost += lost
            log.error(
                "%s dropped %d messages before they were written: give it more nats.keep_bytes or keep_seconds",
                self.stream.address,
                lost,
            )


def _portions(messages: Sequence[Message]) -> Iterator[list[Message]]:
    """What goes into one post or transaction."""
    some: list[Message] = []
    size = 0
    for message in messages:
        if some and size + len(message.body) > POST_BYTES:
            yield some
            some, size = [], 0
        some.append(message)
        size += len(message.body)
    if some:
        yield some


def _missing(store: Store, batches: Sequence[Batch]) -> Iterator[Batch]:
    """The samples of which the store has fewer rows of their keys."""
    samples = [(batch, sample) for batch in batches for sample in batch.samples]
    for table in sorted({sample.table for _, sample in samples}):
        ours = [(_key(table, batch, sample), batch, sample) for batch, sample in samples if sample.table == table]
        wanted = Counter(key for key, _, _ in ours)
        times = [batch.time for _, batch, _ in ours]
        have = Counter(_there(store, table, min(times) - 1, max(times)))
        for key, batch, sample in ours:
            if have[key] < wanted[key]:
                yield Batch(batch.machine, batch.time, (sample,))


def _key(table: str, batch: Batch, sample: Sample) -> Key:
    return (batch.time, batch.machine, *(sample.values.get(key) for key in key_columns(table)[2:]))


def _there(store: Store, table: str, after: int, until: int) -> Iterable[Key]:
    rows = store.read(table, after, until, ())
    cells = [
        rows.column(name).to_pylist() if name in rows.column_names else [None] * rows.num_rows
        for name in key_columns(table)
    ]
    return zip(*cells, strict=True)
