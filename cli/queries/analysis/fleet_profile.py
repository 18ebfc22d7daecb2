"""One window of all ranks of a task: asked of the agents of its machines by signed requests, read from the store."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from store.influx.config import is_address
from store.schema.contract import Store, StoreError
from store.schema.sample import Batch
from store.schema.time import SECOND
from store.zoom_requests import FileZoomRequests, ServerZoomRequests, ZoomRequest

if TYPE_CHECKING:
    from agent.stacks.sampled import Sampled
    from analysis.profile.nccl_window import NcclWindow

HERTZ = 50.0
_SLACK, _MARGIN_S = 1.25, 6.0
"""Agents poll at random up to so many times their interval; and then they need so long to begin."""
_PATIENCE_S, _TURN_S = 45.0, 1.0
_SETTLED_NS = 2 * SECOND
"""After the window's begin: who refuses has said so by then."""
_REFUSED = "an order was refused: "
_SILENT = (
    "its agent did not answer: it is older, has no zoom, cannot read the store, or was busy with another order "
    "(peerwatch doctor on that machine)"
)


@dataclass(slots=True)
class FleetProfile:
    """What the agents gave."""

    request: ZoomRequest
    nccl: NcclWindow
    sampled: dict[str, Sampled] = field(default_factory=dict)
    """By rank."""
    failed: dict[str, str] = field(default_factory=dict)
    """Rank or machine -> why it is not among them."""
    readers: dict[str, str] = field(default_factory=dict)
    """Rank -> what sampled it, and why that was not py-spy."""
    cpu_seconds: float = 0.0
    """Of all samplers together."""
    late_seconds: float = 0.0
    """How much later than asked for the last of them began."""

    @property
    def seconds(self) -> float:
        """Length of the window."""
        return (self.request.until - self.request.begin) / SECOND


def lead_seconds(place: str) -> float:
    """How long it takes until all agents have heard of a request."""
    every = ServerZoomRequests.every_s if is_address(place) else FileZoomRequests.every_s
    return _SLACK * every + _MARGIN_S


def order(store: Store, team: Collection[str], seconds: float, lead: float) -> ZoomRequest:
    """Ask the agents of these machines for one window, which begins in `lead` seconds."""
    now = time.time_ns()
    begin = now + round(lead * SECOND)
    request = ZoomRequest(now, "profile", HERTZ, begin + round(seconds * SECOND), begin=begin)
    store.write([Batch(name, now, (request.sample(),)) for name in team])
    return request


def collect(
    store: Store,
    request: ZoomRequest,
    team: Collection[str],
    only: Collection[tuple[str, int]],
    tell: Callable[[int], None],
) -> FleetProfile:
    """Wait for the answers. `only`: machine and number of the processes that count; empty: all. Raises StoreError."""
    from analysis.profile.nccl_window import COLUMNS, read_window
    from detector.timeseries.rows import rows_of

    rows = _answers(store, request, team, tell)
    first = 2 * request.begin - request.until  # as long a time before the window
    nccl = rows_of("nccl", store.read("nccl", first, request.until, COLUMNS))
    found = FleetProfile(request, read_window(nccl, request.begin, request.until))
    silent = set(team) - {row["machine"] for row in rows}
    refused = _refusals(store, request) if silent else {}
    found.failed |= {name: refused.get(name, _SILENT) for name in sorted(silent)}
    for row in rows:
        if not only or row.get("pid") is None or (row["machine"], int(row["pid"])) in only:
            _add(found, row)
    if not found.sampled:
        name, why = next(iter(found.failed.items()), ("all machines", "no training process runs there"))
        raise StoreError(f"no rank was sampled ({name}: {why})")
    return found


def _answers(
    store: Store, request: ZoomRequest, team: Collection[str], tell: Callable[[int], None]
) -> list[dict[str, Any]]:
    """The rows of this window, once all machines have answered or none is to be waited for."""
    end = request.until + round(_PATIENCE_S * SECOND)
    refused: set[str] | None = None
    while True:
        time.sleep(_TURN_S)
        now = time.time_ns()
        tell(min(now, request.until))
        if refused is None and now > request.begin + _SETTLED_NS:
            refused = {*_refusals(store, request)}
        table = store.read("profile", request.time, now + SECOND)
        rows = [row for row in table.to_pylist() if row.get("begin") == request.begin and row["machine"] in team]
        missing = {row["machine"]: row.get("processes") or 0.0 for row in rows}
        for row in rows:
            missing[row["machine"]] -= 1
        whole = {name for name, left in missing.items() if left <= 0}
        if whole | (refused or set()) >= set(team) or now > end:
            return rows


def _refusals(store: Store, request: ZoomRequest) -> dict[str, str]:
    """Machine -> why its agent has refused an order since."""
    rows = store.read("source", request.time, request.begin + _SETTLED_NS, ("error",)).to_pylist()
    said = {row["machine"]: str(row.get("error") or "") for row in rows if row.get("source") == "zoom"}
    return {name: error.removeprefix(_REFUSED) for name, error in said.items() if error.startswith(_REFUSED)}


def _add(found: FleetProfile, row: Mapping[str, Any]) -> None:
    """One process's row."""
    from agent.stacks.sampled import SampleError, unpacked

    machine, gpu, pid = row["machine"], row["gpu"] or "", int(row.get("pid") or 0)
    name = found.nccl.names.get((machine, gpu, pid)) or (f"{machine} pid {pid}" if pid else machine)
    found.cpu_seconds += row.get("cpu_seconds") or 0.0
    try:
        if not row.get("series"):
            raise SampleError(str(row.get("error") or "it has no samples"))
        found.sampled[name] = unpacked(row.get("functions") or "", row["series"])
    except SampleError as error:
        found.failed[name] = str(error)
        return
    found.late_seconds = max(found.late_seconds, row.get("late_seconds") or 0.0)
    found.readers[name] = f"{row['reader']} ({row['error']})" if row.get("error") else str(row["reader"])
