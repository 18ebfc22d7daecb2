"""The state of the probes: which libraries carry them, and which are blocked for what reason."""

from __future__ import annotations

import time
from collections import Counter

from agent.context import Context
from agent.probes.attachments import Attachments
from agent.probes.governor import ProbeGovernor
from agent.probes.library import Library
from agent.system.left_out import LeftOut
from agent.system.on_change import OnChange
from store.schema.sample import Sample

COST = "probes: cost"
"""The name of the row of all probes together."""


class Probe:
    """Rescans every few periods; writes a row for each library on change and once a minute."""

    def __init__(self, attachments: Attachments, governor: ProbeGovernor, left_out: LeftOut, scan_ns: int) -> None:
        self._attachments, self._governor = attachments, governor
        self._left_out, self._scan_ns = left_out, scan_ns
        self._scanned = 0
        self._states = OnChange[str, tuple[str, str, int]]()

    def read(self, now: int) -> list[Sample]:
        """Rows of the libraries with a new state."""
        if 0 <= now - self._scanned < self._scan_ns:  # a clock that was set back is no reason to wait
            return []
        self._scanned = now
        self._governor.update(time.monotonic())
        self._attachments.update()
        libraries, names = self._attachments.libraries.values(), dict[str, str]()
        copies = Counter[str]()
        for library in libraries:
            copies[library.name] += 1
            # A number distinguishes several copies of one library, not their path: few series.
            number = copies[library.name]
            names[library.identity] = library.name if number == 1 else f"{library.name}#{number}"
        minutely = [*self._left_out.rows(), self._cost()] if self._states.repeats(now) else []
        states = {one.identity: (one.state, one.words, len(one.probes)) for one in libraries}
        due = set(self._states.due(now, states))
        return [self._sample(names[one.identity], one) for one in libraries if one.identity in due] + minutely

    def close(self) -> None:
        """Take the probes off."""
        self._attachments.close()

    def _sample(self, name: str, library: Library) -> Sample:
        on = bool(library.probes)
        values = {
            "library": name,
            "state": library.state,
            "reason": library.words or None,
            "symbols": len(library.probes),
            "suspended": len(library.suspended),
            "path": library.path,
            "hit_seconds": self._governor.cost_of(library) if on else None,
            "core_ratio": self._governor.of_library(library) if on else None,
        }
        return Sample("probe", values)

    def _cost(self) -> Sample:
        """The row of all probes together."""
        most, _ = self._governor.most
        values = {"library": COST, "state": "on", "reason": self._governor.words, "symbols": None, "path": None}
        return Sample("probe", {**values, "hit_seconds": self._governor.cost.emulated, "core_ratio": most})


def open_source(context: Context) -> Probe:
    """The source, ready to read. Raises SourceUnavailableError where probes cannot be had."""
    _, attachments = context.probes()
    assert context.governor is not None  # where there are probes there is one
    return Probe(attachments, context.governor, context.left_out, int(context.config.scan_seconds * 1e9))
