"""Looks up the functions of mapped files, once for each file, in a child process (elf_worker.py)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from agent.binaries.struct_layouts import Layout
from agent.system.child_process import ChildTask
from agent.system.costs import Costs, Owner

PATIENCE_S = 120.0
"""How long a child may print nothing: the server of a network file system may never answer it."""
WAITING, OF_USER, OF_PROCESS, LEAST = 4096, 1024, 512, 16
"""Files that may wait: of all, of one user, of one process; and of one user however many users there are."""
_DEAD_S = 10.0
"""What a file costs over which a child died."""


@dataclass(frozen=True)
class LookupResult:
    """What is known of one file so far."""

    key: Any
    """The caller's name for the file."""
    identity: str = ""
    inode: int = 0
    path: str = ""
    """The path by which it could be opened."""
    functions: dict[str, int] | None = None
    """File offsets by name; None: this answer brings only the layout, or a failure."""
    semaphores: dict[str, int] = field(default_factory=dict)
    """File offsets, by name, of the counters that switch trace points on."""
    variables: dict[str, list[int]] = field(default_factory=dict)
    """By name, bytes from the beginning of the executable mapping to the variable, and its size."""
    stepped: list[int] = field(default_factory=list)
    """File offsets with an instruction that the kernel does not emulate: a probe there costs more."""
    layout: Layout | None = None
    error: str = ""
    """Why the file cannot be read."""
    gone: str = ""
    """Why it cannot be opened: mostly, its process has ended."""
    seconds: float = 0.0
    """Processor time that it took."""


@dataclass(frozen=True, slots=True)
class _Question:
    key: Any
    paths: tuple[str, ...]
    owner: Owner


class SymbolLookup:
    """A queue of files over one child at a time, which reads them in batches.

    A batch ends after some seconds (elf_worker.py). The next one begins with the files of the cheapest users.
    """

    def __init__(self, wanted: Sequence[str], layout_for: str = "ncclCommInitRank") -> None:
        self._wanted = list(wanted)
        self._layout_for = layout_for
        self._queue: list[_Question] = []
        self._asked: list[_Question] = []
        self._of_user, self._of_process = Counter[int](), Counter[Owner]()  # files that wait
        self._costs = Costs()
        self._task = ChildTask("agent.binaries.elf_worker", PATIENCE_S, per_line=True)
        self._opening: int | None = None  # the index of the file that the child opens now

    def has_room(self, owner: Owner) -> bool:
        """Whether another file of that process may wait."""
        most = max(min(OF_USER, WAITING // (len(self._of_user) + 1)), LEAST)
        return self._of_user[owner[0]] < most and self._of_process[owner] < OF_PROCESS

    def ask(self, key: Any, paths: tuple[str, ...], owner: Owner = (0, 0)) -> None:
        """Queue a file, to be opened by the first of the paths that works."""
        self._queue.append(_Question(key, paths, owner))
        self._of_user[owner[0]] += 1
        self._of_process[owner] += 1

    @property
    def busy(self) -> bool:
        """Whether a child is at work, or will be."""
        return self._task.under_way or bool(self._queue)

    def poll(self) -> list[LookupResult]:
        """The answers that have come since the last call. Raises OSError where no child can be started."""
        answers = [answer for line in self._task.poll() if (answer := self._read(line))]
        if not self._task.under_way:
            answers += self._finish()
            self._start()
        return answers

    def close(self) -> None:
        """End the child."""
        self._task.close()

    def _start(self) -> None:
        if not self._queue or not self._task.ready:
            return
        batch = sorted(self._queue, key=lambda question: self._costs.rank(question.owner))
        files = [question.paths for question in batch]
        self._task.ask({"files": files, "wanted": self._wanted, "layout_for": self._layout_for})
        self._asked, self._queue = batch, []

    def _read(self, line: dict[str, Any]) -> LookupResult | None:
        if "opening" in line:
            self._opening = line["opening"]
            return None
        asked = self._asked[0]
        self._costs.add(asked.owner, float(line.get("seconds", 0.0)))
        if line.pop("done", False):
            self._settle(self._asked.pop(0))
        return LookupResult(asked.key, **line)

    def _settle(self, question: _Question) -> None:
        """It is no longer queued."""
        self._of_user.subtract((question.owner[0],))
        self._of_process.subtract((question.owner,))
        self._of_user, self._of_process = +self._of_user, +self._of_process  # without zeros

    def _finish(self) -> list[LookupResult]:
        """Queue again what the child did not answer; a child that died did so over one file, which is not asked for."""
        left, self._asked, code = self._asked, [], self._task.exit_code
        self._queue = left + self._queue
        if not left or code == 0:  # its time was over
            return []
        # The file that it was opening, else the first that it did not answer for.
        fatal = self._queue.pop(self._opening or 0)
        self._opening = None
        self._settle(fatal)
        self._costs.add(fatal.owner, _DEAD_S)
        why = ": its file system does not answer" if code is None else f" or too much memory (exit {code})"
        return [LookupResult(fatal.key, error=f"reading it took too long{why}")]
