"""The description of a training task that each rank receives, and the communicators that its ranks make."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path

from emulator.shared.fabric import Fabric
from emulator.training.ctypes_api import Calls, UniqueId, communicator_config


@dataclass(frozen=True)
class Options:
    """What a rank receives at its start.

    Durations are seconds; 0 iterations: for ever; the world is tensor times pipeline times data.
    """

    rank: int
    world: int
    tensor: int
    pipeline: int
    data: int
    gpu: int
    iterations: int
    seed: int
    micro_batches: int
    checkpoint_every: int
    evaluation_every: int
    load: float
    compute: float
    optimizer: float
    checkpoint_seconds: float
    gradient_bytes: int
    watchdog: bool
    report: Path


@dataclass(frozen=True, slots=True)
class Group:
    """A communicator, this rank's place in it and its size."""

    communicator: int
    rank: int
    ranks: int


def _places(rank: int, tensor: int, data: int) -> dict[str, int]:
    """The rank's place in its tensor, data and pipeline group: tensor ranks are neighbours, as in Megatron."""
    return {"tensor": rank % tensor, "data": rank // tensor % data, "pipeline": rank // (tensor * data)}


def _sizes(options: Options) -> dict[str, int]:
    return {"tensor": options.tensor, "pipeline": options.pipeline, "data": options.data}


def connect(options: Options, calls: Calls, fabric: Fabric) -> dict[str, Group]:
    """Make the communicators as PyTorch does: the world by its id, which rank 0 hands round, the groups by splitting.

    Groups of one rank get none; a group as big as the world is the world. Raises CallError.
    """
    if options.world == 1:
        return {}
    if options.rank == 0:
        fresh = UniqueId()
        calls("ncclGetUniqueId", ctypes.byref(fresh))
        fabric.put_id(bytes(fresh))
    unique_id = UniqueId.from_buffer_copy(fabric.wait_id())
    handle = calls.make("ncclCommInitRankConfig", options.world, unique_id, options.rank, communicator_config())
    world = Group(handle, options.rank, options.world)
    groups = {"world": world}
    for name, size in _sizes(options).items():
        if size > 1:
            groups[name] = world if size == options.world else split(options, calls, world, name)
    return groups


def split(options: Options, calls: Calls, world: Group, name: str) -> Group:
    """Split the world into groups of that name, each with a communicator of its own. Raises CallError."""
    at = _places(options.rank, options.tensor, options.data)
    colour = sum(place << 8 * i for i, (other, place) in enumerate(at.items()) if other != name)
    made = ctypes.c_void_p()
    calls("ncclCommSplit", world.communicator, colour, at[name], ctypes.byref(made), communicator_config())
    return Group(made.value or 0, at[name], _sizes(options)[name])
