"""The columns of a communicator's row in the table `nccl`."""

from __future__ import annotations

from typing import Any

from agent.nccl.proxy_sampler import ProxyShares
from store.schema.sample import Value

STILL_S = 2.0
"""An operation at work that has not moved for so long is unfinished, whoever asks."""

OPERATIONS = (
    "AllReduce",
    "ReduceScatter",
    "AllGather",
    "Broadcast",
    "Reduce",
    "Send",
    "Recv",
    "AlltoAll",
    "Gather",
    "Scatter",
    "AlltoAllv",
    "PutSignal",
    "Signal",
    "WaitSignal",
)
"""In the order of bpf/programs/nccl.bpf.c."""
DATATYPES = ("i8", "u8", "i32", "u32", "i64", "u64", "f16", "f32", "f64", "bf16", "f8e4m3", "f8e5m2")
"""In the order of ncclDataType_t (nccl.h)."""


def of_process(process: Any) -> dict[str, Value]:
    """What is counted of the whole process: an entry of the kernel's array `processes`, or None."""
    if process is None:
        return {}
    starts, lost = int(process["group_starts"]), int(process["lost"])
    return {"groups_total": starts, "groups_open": float(starts - int(process["group_ends"])), "lost_total": lost}


def pending_of(asked: bool, watched: bool, shares: ProxyShares | None) -> float | None:
    """Whether there is unfinished work, 0 or 1; None: not known.

    A watchdog asks after unfinished work only. Where the communicator is not `watched` by one, an operation that is
    at work and does not move is unfinished.
    """
    if watched:
        return float(asked)
    return None if shares is None else float(shares.active > 0 and shares.still >= STILL_S)


def of_transfers(shares: ProxyShares | None, ranks: int | None) -> dict[str, Value]:
    """The columns that samples of the proxy give; a rank that is none of the communicator's `ranks` is left out."""
    if shares is None:
        return {}
    values: dict[str, Value] = {
        "active_ratio": shares.active,
        "send_pending_ratio": shares.sending,
        "receive_pending_ratio": shares.receiving,
        "unsent_ratio": shares.unsent,
        "waits_for_gpu": float(shares.awaiting_gpu),
        "still_seconds": shares.still,
        "waits_channel": shares.channel,
        "waits_net_device": shares.net_device,
    }
    peers = {
        "waits_to_send_to": shares.send_to,
        "waits_to_receive_from": shares.receive_from,
        "waits_for_credit_from": shares.credit_from,
    }
    for name, rank in peers.items():
        values[name] = float(rank) if rank is not None and -1 <= rank < (ranks or 0) else None
    if shares.steps:
        for name in ("posted", "transmitted", "done", "received"):
            values[f"steps_{name}_total"] = getattr(shares.steps, name)
        values["step"] = float(shares.steps.place)
    return values


def operation_of(entry: Any) -> str | None:
    """The last operation enqueued of an entry of the kernel's array `slots`, as kind:datatype:count; None: none yet."""
    if not entry["operations"]:
        return None
    kind, datatype = int(entry["last_kind"]), int(entry["last_datatype"])
    name = OPERATIONS[kind] if kind < len(OPERATIONS) else str(kind)
    return f"{name}:{DATATYPES[datatype] if datatype < len(DATATYPES) else datatype}:{int(entry['last_count'])}"
