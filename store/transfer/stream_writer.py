"""Writes a stream to a store: messages are written, then acknowledged, so that a kill at any moment loses no sample.

A message that may have been written before is compared with what the store holds, key by key. InfluxDB needs no such
look: a row written again takes its own place. After InfluxDB restarts, what it
acknowledged lately is written again, since it may have lost it.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from store.influx.influxql import Influx
from store.line_protocol.parse import batches_of
from store.line_protocol.write import plain, split
from store.nats.stream import Message, Stream
from store.schema.contract import Store, StoreError, UnfitError
from store.schema.sample import Batch
from store.spool.post import Refused, UnsentError, post
from store.spool.sender import POST_BYTES
from store.transfer.missing import missing

log = logging.getLogger(__name__)

AT_ONCE = 500
"""Messages taken at once."""
AGAIN_S = 1.0
"""Seconds to wait for messages that are to be written again."""
LOOK_S = 10.0
"""Period of the check whether the stream dropped messages that no writer had taken."""

MOST_LINES = 50_000
"""Lines of one transaction, and of one message: an agent's has 5,000."""
SAY_S = 60.0
"""Seconds between log lines on refused lines."""


@dataclass(frozen=True, slots=True)
class _Taken:
    """A message and its text, unpacked; no text where it cannot be read."""

    message: Message
    text: bytes


class Writer:
    """Writes messages to one store. Writers of one name share the work; each other name is given everything."""

    def __init__(self, stream: Stream, store: Store, name: str) -> None:
        self.stream, self.store, self.name = stream, store, name
        self.written = self.refused = self.lost = 0
        """Messages written, lines that the store refused, messages that the stream dropped before they were taken."""
        self.unread = 0
        """Messages ignored, since no agent has written them."""
        self._said = -SAY_S
        self._looked = -LOOK_S
        self._took: deque[tuple[float, int, int]] = deque()
        """When messages were taken that InfluxDB may lose, their first and their last number."""
        self._began = ""
        self._again = range(0)
        """Numbers of the messages to be written again."""

    def step(self, wait_s: float) -> int:
        """Write what waits, or what comes within so many seconds; returns how many messages. Raises StoreError."""
        self._look()
        messages = self.stream.take(self.name, AT_ONCE, wait_s)
        for some in self._portions(messages):
            self._write([one for one in some if one.text])
            self.stream.settle([one.message for one in some])
            self.written += sum(bool(one.text) for one in some)
        if isinstance(self.store, Influx):
            self._rewrite_recent(self.store)
        return len(messages)

    def _rewrite_recent(self, store: Influx) -> None:
        """After a restart of InfluxDB, write again what it acknowledged lately, a part in each step."""
        while self._took and self._took[0][0] <= time.monotonic() - store.server.config.resend_seconds:
            self._took.popleft()
        if not store.server.config.resend_seconds:
            return
        began = store.server.began()
        if began != self._began and self._took:
            self._began = began
            self._again = range(min(one[1] for one in self._took), max(one[2] for one in self._took) + 1)
        if self._again:
            found = self.stream.take_from(self._again[0], AT_ONCE, AGAIN_S)
            found = [message for message in found if message.sequence in self._again]
            for some in self._portions(found, again=True):
                # What is refused now was counted when it was refused first.
                self._pass_on(store, [one for one in some if one.text])
            reached = found[-1].sequence + 1 if found else self._again.stop
            self._again = range(reached, self._again.stop)

    def _write(self, taken: Sequence[_Taken]) -> None:
        if not taken:
            return
        if isinstance(self.store, Influx):
            if refused := self._pass_on(self.store, taken):
                self._refuse(len(refused), refused[0][1])
            numbers = [one.message.sequence for one in taken]
            self._took.append((time.monotonic(), min(numbers), max(numbers)))
            return
        read = [(one.message, self._batches(one)) for one in taken]
        try:
            self._store(read)
        except UnfitError:
            for one in read:
                try:
                    self._store([one])
                except UnfitError as error:
                    self._set_aside(one[0], error)

    def _store(self, read: Iterable[tuple[Message, list[Batch]]]) -> None:
        fresh: list[Batch] = []
        again: list[Batch] = []
        for message, batches in read:
            (again if message.again else fresh).extend(batches)
        if again:
            again = list(missing(self.store, again))
        if fresh or again:
            self.store.write([*again, *fresh])

    def _batches(self, taken: _Taken) -> list[Batch]:
        bad: list[StoreError] = []
        found = batches_of(split(taken.text), bad.append)
        if bad:
            self._refuse(len(bad), f"message {taken.message.sequence}: {bad[0]}")
        return found

    def _pass_on(self, store: Influx, taken: Sequence[_Taken]) -> Refused:
        """Post the packed lines unchanged; returns those that the server refuses, with reasons."""
        refused: Refused = []
        if not taken:
            return refused
        answer = store.server.write(b"".join(one.message.body for one in taken))
        try:
            if answer.status in (400, 413, 422):
                for one in taken:
                    refused += post(store.server, split(one.text))
            elif not answer.good:
                raise UnsentError(answer)
        except UnsentError as error:
            raise StoreError(store.server.explain(error.answer)) from error
        return refused

    def _portions(self, messages: Iterable[Message], again: bool = False) -> Iterator[list[_Taken]]:
        """Messages grouped into posts or transactions. A message that cannot be read has no text."""
        some: list[_Taken] = []
        size = lines = 0
        for message in messages:
            one = self._read(message, again)
            count = one.text.count(b"\n")
            if some and (size + len(message.body) > POST_BYTES or lines + count > MOST_LINES):
                yield some
                some, size, lines = [], 0, 0
            some.append(one)
            size, lines = size + len(message.body), lines + count
        if some:
            yield some

    def _read(self, message: Message, again: bool) -> _Taken:
        try:
            text = plain(message.body)
            if text.count(b"\n") > MOST_LINES:
                raise StoreError(f"it has more than {MOST_LINES} lines")
            text.decode()
        except (StoreError, UnicodeDecodeError) as error:
            if not again:
                self._set_aside(message, error)
            return _Taken(message, b"")
        return _Taken(message, text)

    def _set_aside(self, message: Message, error: Exception) -> None:
        """Count a message that cannot be read or stored; it stays in the stream for a person to inspect."""
        self.unread += 1
        if self.unread == 1:
            log.error(
                "%s: message %d cannot be read and is ignored, as will be others: %s",
                self.stream.address,
                message.sequence,
                error,
            )

    def _refuse(self, lines: int, why: str) -> None:
        self.refused += lines
        now = time.monotonic()
        if now - self._said >= SAY_S:
            self._said = now
            log.error("%d lines are refused until now, the last since %s", self.refused, why)

    def _look(self) -> None:
        if time.monotonic() - self._looked < LOOK_S:
            return
        self._looked = time.monotonic()
        if lost := self.stream.consumer_state(self.name).lost:
            self.lost += lost
            log.error(
                "%s dropped %d messages before they were written: give it more nats.keep_bytes or keep_seconds",
                self.stream.address,
                lost,
            )
