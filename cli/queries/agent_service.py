"""The state of this machine's agent, from its rows in the tables `source` and `probe`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from typing import Any

from agent.config import SOURCES
from cli.config import Settings, open_place
from cli.queries.delivery_health import START, Finding
from cli.time_format import ago
from store.nats.config import is_stream
from store.schema.contract import Store, StoreError
from store.schema.time import SECOND

FRESH_S, STATE_S = 30.0, 150.0
"""Largest age in seconds of the last reading of a running agent, and of a state that it repeats each minute."""

UNSEEN = Finding(
    "NCCL transfers",
    "on",
    "not seen: NVLink and shared memory within a machine, symmetric memory, copy engines, NVLS, device-initiated "
    "networking; with PXN a transfer shows on the rank that carries it",
)
"""What no library lets be seen of communication, beside what is said of each."""


def report(place: str, settings: Settings) -> tuple[Finding, list[Finding]]:
    """Whether an agent runs here, and the state of its sources and probes, empty where no agent reports.

    The largest age grows with the agent's period, so a slow agent does not count as stopped.
    """
    try:
        if is_stream(place):
            raise StoreError("its readings go to a stream; name the store that the writer fills with --store")
        with closing(open_place(place, settings=settings)) as store:
            last, sources, probes = _read(store, settings)
    except StoreError as error:
        return Finding("agent", "off", f"the store does not answer: {error}; this command checked the rest itself"), []
    fresh_s = max(FRESH_S, 3 * settings.agent.period_seconds)
    if last is None or (age_s := (time.time_ns() - last) / SECOND) > fresh_s:
        why = f"no reading of {settings.agent.name} within {fresh_s:.0f} s: no agent runs here"
        return Finding("agent", "off", f"{why}; this command checked the rest itself", START), []
    why = f"its last reading is {ago(age_s)} old; the rest is its own report"
    return Finding("agent", "on", why), [*_sources(sources), *_probes(probes)]


def _read(store: Store, settings: Settings) -> tuple[int | None, list[dict[str, Any]], list[dict[str, Any]]]:
    """Time of the machine's last row, and the last row of each source and of each probed library."""
    first = time.time_ns() - round(max(STATE_S, 3 * settings.agent.period_seconds) * SECOND)
    tables = []
    for table, key in (("source", "source"), ("probe", "library")):
        rows = store.read(table, first).to_pylist()
        tables.append({row[key]: row for row in rows if row["machine"] == settings.agent.name})
    sources, probes = tables
    last = max((row["time"] for row in sources.values()), default=None)
    return last, list(sources.values()), list(probes.values())


def source_finding(row: Mapping[str, Any]) -> Finding:
    """The state of a source by its row: blocked by an error, or off because this machine has nothing for it."""
    name, error, absent = f"source {row['source']}", row.get("error"), row.get("unavailable")
    state = "blocked" if error else "off" if absent else "on"
    return Finding(name, state, str(error or absent or ""))


def _sources(rows: Iterable[dict[str, Any]]) -> Iterator[Finding]:
    known = {row["source"]: row for row in rows}
    for name in SOURCES:
        row = known.get(name)
        if row is None:
            yield Finding(f"source {name}", "off", "the agent does not read it", f'add "{name}" to agent.sources')
        else:
            yield source_finding(row)
    if lost := known.get("kernel", {}).get("lost_total"):
        yield Finding("kernel", "on", f"{lost:.0f} probe hits were lost since the agent started")


def _probes(rows: list[dict[str, Any]]) -> Iterator[Finding]:
    for row in rows:
        if row["state"] == "gone":
            continue
        own = ":" in row["library"] or row["library"].startswith("tracepoint ")
        name = row["library"] if own else f"library {row.get('path') or row['library']}"
        count = "" if own else f"{row.get('symbols') or 0:.0f} probes"
        yield Finding(name, row["state"], "; ".join(filter(None, (count, row.get("reason")))))
    if any(row["state"] == "on" and "nccl" in row["library"] for row in rows):
        yield UNSEEN
