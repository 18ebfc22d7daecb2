"""The state of the probes: which libraries carry them, and which are blocked for what reason."""

from __future__ import annotations

from collections import Counter

from agent.context import Context
from agent.probes.attachments import Attachments
from agent.probes.library import Library
from agent.system.left_out import LeftOut
from agent.system.on_change import OnChange
from store.schema.sample import Sample


class Probe:
    """Rescans every few periods; writes a row for each library on change and once a minute."""

    def __init__(self, attachments: Attachments, left_out: LeftOut, scan_ns: int) -> None:
        self._attachments, self._left_out, self._scan_ns = attachments, left_out, scan_ns
        self._scanned = 0
        self._states = OnChange[str, tuple[str, str, int]]()

    def read(self, now: int) -> list[Sample]:
        """Rows of the libraries with a new state."""
        if 0 <= now - self._scanned < self._scan_ns:  # a clock that was set back is no reason to wait
            return []
        self._scanned = now
        self._attachments.update()
        libraries, names = self._attachments.libraries.values(), dict[str, str]()
        copies = Counter[str]()
        for library in libraries:
            copies[library.name] += 1
            # A number distinguishes several copies of one library, not their path: few series.
            number = copies[library.name]
            names[library.identity] = library.name if number == 1 else f"{library.name}#{number}"
        left_out = self._left_out.rows() if self._states.repeats(now) else []
        states = {one.identity: (one.state, _reason(one), len(one.probes)) for one in libraries}
        due = set(self._states.due(now, states))
        return [_sample(names[one.identity], one) for one in libraries if one.identity in due] + left_out

    def close(self) -> None:
        """Take the probes off."""
        self._attachments.close()


def _reason(library: Library) -> str:
    return "; ".join(filter(None, (library.reason, *library.unread)))


def _sample(name: str, library: Library) -> Sample:
    values = {
        "library": name,
        "state": library.state,
        "reason": _reason(library) or None,
        "symbols": len(library.probes),
        "path": library.path,
    }
    return Sample("probe", values)


def open_source(context: Context) -> Probe:
    """The source, ready to read. Raises SourceUnavailableError where probes cannot be had."""
    _, attachments = context.probes()
    return Probe(attachments, context.left_out, int(context.config.scan_seconds * 1e9))
