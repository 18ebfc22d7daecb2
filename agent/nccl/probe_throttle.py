"""Suspends the probes on NCCL's calls where a task calls very often: its progress is read from memory alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from agent.probes.attachments import Attachments
from agent.probes.groups import CALLS
from agent.probes.library import Library
from agent.process.procfs import Process

FIRST_SAMPLE_S, SAMPLE_S = 10.0, 2.0
"""How long probes first stay on in mode `once`, and how long a later sample of calls takes."""
FAST_S, CALM_S = 5.0, 10.0
"""How long calls must come too often before probes are suspended, and seldom enough before they stay on again."""
AGAIN_S, SOON_S = 600.0, 30.0
"""When to resume, and when because of communicators that no call has shown yet; that doubles up to the other."""
_CALM = 0.5
"""Share of the limit below which calls come seldom enough."""
TooMany = Callable[[int, float, bool], bool]
"""Whether the calls of a process (number, calls a second) are too many; True: its probes were just suspended."""


def above(most: float) -> TooMany:
    """More than so many a second."""
    return lambda pid, rate, resumed: rate > most * (_CALM if resumed else 1.0)


@dataclass(frozen=True, slots=True)
class Calls:
    """What is known of the calls of one process."""

    total: int
    """Those counted since it is followed."""
    followed: bool
    """It has communicators, and all of them can be followed from memory."""
    unseen: int
    """Communicators that it announced and that no counted call has named yet."""


@dataclass(slots=True)
class _LibraryState:
    """What is remembered of one library; times in monotonic seconds."""

    since: float
    """When the probes on its calls were put on, or suspended."""
    suspended: bool = False
    has_suspended: bool = False
    """They were suspended since they were put on for good."""
    fast_since: float | None = None
    unseen: int = 0
    soon: float = 0.0


class ProbeThrottle:
    """Decides for each library whether its calls are worth a probe; Attachments does it. Modes: config.NCCL_PROBES."""

    def __init__(self, attachments: Attachments, mode: str, too_many: TooMany) -> None:
        self._attachments, self._mode, self._too_many = attachments, mode, too_many
        self._states: dict[str, _LibraryState] = {}
        self._suspended: set[Process] = set()
        self._before: tuple[float, dict[int, int]] = 0.0, {}

    def suspended(self, process: Process) -> bool:
        """Whether calls of this process go uncounted now, or did a moment ago and may again."""
        return process in self._suspended

    def update(self, clock: float, calls: Mapping[int, Calls]) -> None:
        """Decide by the calls of all training processes, at that time (monotonic seconds)."""
        if self._mode == "always":
            return
        then, before = self._before
        rates = {pid: (one.total - before.get(pid, one.total)) / max(clock - then, 1e-3) for pid, one in calls.items()}
        self._before = clock, {pid: one.total for pid, one in calls.items()}
        libraries = {one.identity: one for one in tuple(self._attachments.libraries.values()) if CALLS in one.functions}
        self._states = {name: self._states.get(name, _LibraryState(clock)) for name in libraries}
        self._suspended = set()
        for name, library in libraries.items():
            state, users = self._states[name], tuple(library.users)
            mine = [calls[user.pid] for user in users if user.pid in calls]
            suspended = CALLS in library.suspended
            if state.suspended != suspended:
                state.suspended, state.since, state.fast_since = suspended, clock, None
                state.has_suspended |= suspended
            if suspended:
                self._wait(library, state, clock, sum(one.unseen for one in mine))
            else:
                self._watch(library, state, clock, {user.pid: rates.get(user.pid, 0.0) for user in users}, mine)
            if state.has_suspended:
                self._suspended.update(users)

    def _wait(self, library: Library, state: _LibraryState, clock: float, unseen: int) -> None:
        """Resume after a while, soon where communicators were made."""
        if unseen > state.unseen:
            state.soon = 0.0
        state.unseen = unseen
        if clock - state.since >= (min(state.soon, AGAIN_S) if unseen else AGAIN_S):
            state.soon = max(SOON_S, 2 * state.soon)
            library.resume(CALLS)

    def _watch(
        self, library: Library, state: _LibraryState, clock: float, rates: Mapping[int, float], calls: Iterable[Calls]
    ) -> None:
        """Suspend where a sample has lasted, or calls come too often; only where memory shows as much."""
        lasted, why = clock - state.since, "the sample of its calls is over"
        over = lasted >= (SAMPLE_S if state.has_suspended else FIRST_SAMPLE_S)
        if self._mode == "auto":
            fast = [rate for pid, rate in rates.items() if self._too_many(pid, rate, state.has_suspended)]
            state.fast_since = (state.fast_since or clock) if fast else None
            over = state.fast_since is not None and clock - state.fast_since >= (
                SAMPLE_S if state.has_suspended else FAST_S
            )
            why = f"a process calls it {max(fast, default=0.0):.0f} times a second"
            if not fast and lasted >= CALM_S:
                state.has_suspended, library.remark = False, ""
        if not over:
            return
        followed = [one.followed for one in calls]
        if followed and all(followed):
            library.pause(CALLS, f"probes on its calls are suspended: {why}, and progress is read from memory")
        elif self._mode == "auto" or followed:
            state.has_suspended = False
            library.remark = f"probes on its calls stay, though {why}: not all communicators have a count in memory"
