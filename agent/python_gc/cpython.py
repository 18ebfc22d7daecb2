"""The places at which a CPython is probed for garbage collections, by the symbols that its file has.

Versions 3.8 to 3.14 were read (Modules/gcmodule.c; from 3.13 on Python/gc.c and Python/gc_free_threading.c). None of
the functions meant is public, so a stripped build has them only as trace points, if it was built with those.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bpf.uprobe import Point

START, DONE = "python:gc__start", "python:gc__done"
"""Trace points around the work itself; in builds of Debian, Ubuntu and Fedora (configure --with-dtrace)."""
CALLBACK = "invoke_gc_callback"
"""Entered before and after every collection but the last one of a program; all versions."""
MAIN = ("gc_collect_main", "collect", "_PyGC_Collect")
"""The collection: 3.10 to 3.13 and every free-threaded build; 3.8 and 3.9; 3.14. The first that is there, for 3.13 has
the last one as a mere way to the first."""
PUBLIC = "PyGC_Collect"
"""Public in every version. Neither gc.collect() nor the allocator go through it: it only tells a CPython."""
RUNTIME = "_PyRuntime"
"""The public variable that leads to all of an interpreter's state."""
WANTED = (PUBLIC, START, DONE, CALLBACK + "*", *(name + "*" for name in MAIN), "&" + RUNTIME)

_PLACES = 64
"""Functions and trace points that a compiler may make of those meant; each place costs a probe."""

STRIPPED = "stripped, and built without trace points"


@dataclass(frozen=True, slots=True)
class Plan:
    """Which programs go where. No points: this interpreter cannot be watched, and the reason says why."""

    points: tuple[tuple[str, Point], ...] = ()
    timed: bool = True
    """Whether the length of a collection will be known, not only that there was one."""
    reason: str = ""


def plan(functions: Mapping[str, int], semaphores: Mapping[str, int], no_returns: str) -> Plan | None:
    """How to watch the file with these functions and trace points; None: it is no CPython.

    `no_returns` says why return probes are not to be had; empty: they are.
    """
    if PUBLIC not in functions:
        return None
    if len(functions) > _PLACES:
        return Plan((), False, "it has too many places that collect garbage")
    starts, ends = (_places(functions, name, "#") for name in (START, DONE))
    if starts and ends:
        pairs = [("python_begin", name) for name in starts] + [("python_end", name) for name in ends]
        return Plan(tuple((program, Point(functions[name], semaphores.get(name, 0))) for program, name in pairs))
    if calls := _places(functions, CALLBACK, "."):
        return Plan(tuple(("python_phase", Point(functions[name])) for name in calls))
    mains = next((found for name in MAIN if (found := _places(functions, name, "."))), [])
    if mains and no_returns:
        counted = tuple(("python_count", Point(functions[name])) for name in mains)
        return Plan(counted, False, f"collections are counted, not timed: {no_returns}")
    if mains:
        offsets = [functions[name] for name in mains]
        both = (("python_begin", False), ("python_end", True))
        return Plan(tuple((program, Point(at, returns=back)) for at in offsets for program, back in both))
    return Plan((), False, STRIPPED)


def _places(functions: Mapping[str, int], name: str, separator: str) -> list[str]:
    """The entries of a name: itself, and those with a suffix; each place in the file once."""
    found = {functions[key]: key for key in sorted(functions) if key.split(separator)[0] == name}
    return sorted(found.values())
