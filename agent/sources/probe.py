"""The probes themselves: looks for libraries to attach to, and tells what is attached and what is blocked and why."""

from __future__ import annotations

from collections import Counter

from agent.context import Context
from agent.probes.attachments import Attachments
from agent.probes.library import Library
from agent.system.left_out import LeftOut
from store.schema.sample import Sample

_REPEAT_NS = 60_000_000_000
"""A state that does not change is told once a minute, so that a reader need not go back far."""


class Probe:
    """Rescans every few periods; writes a row for each library on change and once a minute."""

    def __init__(self, attachments: Attachments, left_out: LeftOut, scan_ns: int) -> None:
        self._attachments, self._left_out, self._scan_ns = attachments, left_out, scan_ns
        self._scanned = 0
        self._told: dict[str, tuple[str, str, int]] = {}
        self._told_at = 0

    def read(self, now: int) -> list[Sample]:
        """Rows of libraries whose state is news."""
        if 0 <= now - self._scanned < self._scan_ns:  # a clock that was set back is no reason to wait
            return []
        self._scanned = now
        self._attachments.update()
        repeat = not 0 <= now - self._told_at < _REPEAT_NS
        if repeat:
            self._told_at = now
        samples, told, names = [], {}, Counter[str]()
        for library in self._attachments.libraries.values():
            names[library.name] += 1
            # Several copies of one library are told apart by a number, not by their path: few series.
            name = library.name if names[library.name] == 1 else f"{library.name}#{names[library.name]}"
            state = (library.state, library.reason, len(library.probes))
            if library.state != "gone":
                told[library.identity] = state
            if repeat or self._told.get(library.identity) != state:
                samples.append(_sample(name, library))
        self._told = told
        return samples + self._left_out.rows() if repeat else samples

    def close(self) -> None:
        """Take the probes off."""
        self._attachments.close()


def _sample(name: str, library: Library) -> Sample:
    values = {
        "library": name,
        "state": library.state,
        "reason": library.reason or None,
        "symbols": len(library.probes),
        "path": library.path,
    }
    return Sample("probe", values)


def open_source(context: Context) -> Probe:
    """The source, ready to read. Raises NothingThereError where probes cannot be had."""
    _, attachments = context.probes()
    return Probe(attachments, context.left_out, int(context.config.scan_seconds * 1e9))
