"""The agent's path to a server: samples go to the spool on disk, and a thread posts them to the server."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator

from store.line_protocol.write import lines_of, unpack
from store.schema.contract import StoreError
from store.schema.sample import Batch, Sample
from store.spool.post import Refused, Server, UnsentError, post
from store.spool.queue import Post, Spool
from store.transport.answers import NO_ANSWER

log = logging.getLogger(__name__)

POST_BYTES = 500_000
"""Packed bytes of one post: below the megabyte that proxies let through."""
BACK_OFF_S = (1.0, 60.0)
"""First and longest wait after a failure in seconds; it doubles, with jitter over its second half."""
LONGEST_REST_S = 900.0
"""Longest Retry-After that is obeyed, in seconds."""
RESEND_BYTES = 50_000
"""Bytes sent again at a time, after new samples: all agents do so at once, to a server that has just restarted."""
RESEND_S = 1.0
"""Seconds between them."""
REPEAT_LOG_S = 600.0
"""Seconds between repeated log lines of one failure."""
FAREWELL_S = 3.0
"""Seconds that the end of the agent waits for a last post; the rest stays on disk."""


class Sender:
    """Sends posts from a spool to a server, in its own thread or, by `send`, in the caller's."""

    def __init__(self, spool: Spool, server: Server, post_seconds: float) -> None:
        self.spool, self.server, self.post_seconds = spool, server, post_seconds
        self.error = ""
        self.failures = 0
        """Consecutive posts that failed."""
        self._broke = False
        self._said: dict[str, float] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sender", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Send what can be sent at once, and end; the rest stays on disk."""
        self._stop.set()
        self._thread.join(FAREWELL_S)

    def send(self) -> float:
        """Send what waits, and part of what is to be sent again; returns the seconds until the next call."""
        rest = self.post_seconds
        try:
            self._check_restart()
            while posts := self.spool.oldest_posts(POST_BYTES):
                self._carry(posts)
                self._check_restart()
                if self.failures:
                    log.info("%s takes readings again", self.server.address)
                self.failures, self.error = 0, ""
                if self._stop.is_set():
                    return rest
            if posts := self.spool.posts_to_resend(RESEND_BYTES):
                self._carry_resent(posts)
                rest = min(rest, RESEND_S)
        except UnsentError as error:
            self._broke = self._broke or error.answer.status == NO_ANSWER
            return self._failed(self.server.explain(error.answer), error.answer.retry_after_s)
        except StoreError as error:
            self._broke = True
            return self._failed(str(error), None)
        return rest * random.uniform(0.75, 1.25)

    def _check_restart(self) -> None:
        """Have all sent posts that stay sent again after a restart of the server, which may have lost them."""
        if not self.spool.resend_seconds:
            return
        began = self.server.began()
        if began != self.spool.began or (self._broke and not began):
            self.spool.request_resend(began)
            if self.spool.posts_to_resend(1):
                log.info("%s has restarted: what it acknowledged lately is sent again", self.server.address)
        self._broke = False

    def _carry(self, posts: list[Post]) -> None:
        for some, refused in self._delivered(posts):
            self.spool.settle(some, refused, time.time_ns())
            if refused and self._may_log("refused"):
                log.error("%s refuses %d lines, the first since %s", self.server.address, len(refused), refused[0][1])

    def _carry_resent(self, posts: list[Post]) -> None:
        for some, _ in self._delivered(posts):  # a refused line was counted when it was refused first
            self.spool.settle_resent(some)
        self._check_restart()

    def _delivered(self, posts: list[Post]) -> Iterator[tuple[list[Post], Refused]]:
        """Send; yields the posts that the server has, and the lines of them that it refused. Raises UnsentError."""
        answer = self.server.write(b"".join(one.body for one in posts))
        if answer.good:
            yield posts, []
        elif answer.status in (400, 413, 422):
            # The search starts post by post: a bad line is mostly alone, and other posts need not be unpacked.
            for one in posts:
                yield [one], self._find_refused(one)
        else:
            raise UnsentError(answer)

    def _find_refused(self, one: Post) -> Refused:
        """Send the lines of one post; returns the refused ones, which are all of a post that is damaged on disk."""
        try:
            lines = unpack(one.body)
        except StoreError as error:
            return [(one.body[:100], str(error))] * one.lines
        return post(self.server, lines)

    def _failed(self, why: str, rest_s: float | None) -> float:
        """Log the failure, though not each time; returns the seconds to wait."""
        if why[:60] != self.error[:60] or self._may_log("waits"):
            log.error("readings wait on disk: %s", why)
            self._said["waits"] = time.monotonic()
        self.failures, self.error = self.failures + 1, why
        first, longest = BACK_OFF_S
        back_off = min(longest, first * 2.0 ** min(self.failures - 1, 20)) * random.uniform(0.5, 1.0)
        return max(back_off, min(rest_s or 0.0, LONGEST_REST_S))

    def _may_log(self, what: str) -> bool:
        """Whether this was not logged within REPEAT_LOG_S."""
        now = time.monotonic()
        may = now - self._said.get(what, -REPEAT_LOG_S) >= REPEAT_LOG_S
        self._said[what] = now if may else self._said[what]
        return may

    def _run(self) -> None:
        # Agents that were started together must not post together.
        wait = self.post_seconds * random.random()
        while not self._stop.wait(wait):
            try:
                wait = self.send()
            except Exception as error:  # no one would notice that the thread is gone until the disk is full
                log.exception("the sender failed")
                wait = self._failed(f"{type(error).__name__}: {error}", None)
        if not self.failures:
            self.send()


class Spooled:
    """A sink for the agent: stores batches at the speed of the disk, whatever the server and network do."""

    def __init__(self, server: Server, spool: Spool, clock: Callable[[], int] = time.time_ns) -> None:
        self.server, self.spool, self._clock = server, spool, clock
        self.sender = Sender(spool, server, server.config.post_seconds)
        self.sender.start()

    def write(self, batches: Iterable[Batch]) -> None:
        """Store these batches on disk, each with a row on the state of the spool. Raises StoreError."""
        batches = [Batch(batch.machine, batch.time, (*batch.samples, self._spool_sample())) for batch in batches]
        self.spool.put(lines_of(batches), self._clock())

    def close(self) -> None:
        """Send what can be sent at once; the rest stays on disk for the next start."""
        self.sender.stop()
        self.spool.close()
        self.server.close()

    def _spool_sample(self) -> Sample:
        counts = self.spool.line_counts()
        return Sample(
            "source",
            {
                "source": "spool",
                "success": float(not self.sender.error),
                "waiting_rows": float(counts.waiting),
                "waiting_bytes": float(counts.waiting_bytes),
                "dropped_rows_total": counts.dropped,
                "refused_rows_total": counts.refused,
                "error": self.sender.error or None,
            },
        )
