"""Python's view of the fabric, the memory that all emulated ranks share: `fabric.h` is the other side of it."""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

MAGIC, VERSION, RANKS, BYTES = 0x50574642, 4, 64, 32 << 20
BANDWIDTH = 1e10


class FabricError(OSError):
    """The fabric's file can't be used; the message names cause and mend."""


class _Head(ctypes.Structure):
    _fields_ = (
        ("magic", ctypes.c_uint32),
        ("version", ctypes.c_uint32),
        ("ranks", ctypes.c_uint32),
        ("gpus", ctypes.c_uint32),
        ("bandwidth", ctypes.c_double),
        ("id_ready", ctypes.c_uint32),
        ("unused", ctypes.c_uint32),
        ("id", ctypes.c_ubyte * 128),
        ("pad", ctypes.c_ubyte * 32),
    )


class RankBlock(ctypes.Structure):
    """One rank's block: what the fleet orders, the machine's hardware does, the rank says of itself; seconds."""

    compute_scale: float
    link_scale: float
    copy_scale: float
    fault: int
    epoch: int
    amount: float
    throttle: float
    link_down: int
    lost: int
    iterations: int
    iteration_seconds: float
    compute_seconds: float
    collective_seconds: float
    wire_bytes: float
    proxy_sleep_ms: int
    kernel_seconds: float
    nccl_seconds: float
    _fields_ = (
        ("compute_scale", ctypes.c_double),
        ("link_scale", ctypes.c_double),
        ("copy_scale", ctypes.c_double),
        ("fault", ctypes.c_uint32),
        ("epoch", ctypes.c_uint32),
        ("amount", ctypes.c_double),
        ("throttle", ctypes.c_double),
        ("link_down", ctypes.c_uint32),
        ("lost", ctypes.c_uint32),
        ("iterations", ctypes.c_uint64),
        ("iteration_seconds", ctypes.c_double),
        ("compute_seconds", ctypes.c_double),
        ("collective_seconds", ctypes.c_double),
        ("wire_bytes", ctypes.c_double),
        ("word", ctypes.c_uint32),
        ("proxy_sleep_ms", ctypes.c_uint32),
        ("kernel_seconds", ctypes.c_double),
        ("nccl_seconds", ctypes.c_double),
        ("pad", ctypes.c_ubyte * 8),
    )


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a rank is, and how its last iteration went; seconds blocked behind compute and behind collectives."""

    iterations: int
    iteration_seconds: float
    compute_seconds: float
    collective_seconds: float


def create(path: Path, ranks: int, gpus: int) -> None:
    """Make a fresh fabric for `ranks` ranks, `gpus` of them on each machine. Raises FabricError."""
    if not 1 <= ranks <= RANKS:
        raise FabricError(f"an emulated fleet has 1 to {RANKS} ranks, not {ranks}")
    with path.open("wb") as file:
        file.truncate(BYTES)
    with Fabric(path, fresh=True) as fabric:
        fabric.head.ranks, fabric.head.gpus, fabric.head.bandwidth = ranks, gpus, BANDWIDTH
        for block in fabric.ranks:
            block.compute_scale = block.link_scale = block.copy_scale = block.throttle = 1.0
        fabric.head.version, fabric.head.magic = VERSION, MAGIC


class Fabric:
    """The mapped file. Raises FabricError when it is missing or no fabric of this version."""

    head: _Head

    def __init__(self, path: Path, fresh: bool = False) -> None:
        try:
            with path.open("r+b") as file:
                self._map = mmap.mmap(file.fileno(), BYTES)
        except (OSError, ValueError) as error:
            raise FabricError(f"can't map the fabric {path}: {error}") from None
        self.head = _Head.from_buffer(self._map)
        self.ranks = (RankBlock * RANKS).from_buffer(self._map, ctypes.sizeof(_Head))
        if not fresh and (self.head.magic, self.head.version) != (MAGIC, VERSION):
            self.close()
            raise FabricError(f"{path} is not a fabric of this version")

    def __enter__(self) -> Fabric:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file; it is unmapped when the last block handed out is gone."""
        del self.head, self.ranks, self._map

    def order(self, rank: int, fault: int, amount: float, scales: tuple[float, float, float]) -> None:
        """Tell a rank which fault to have from now on; factors on kernel, transfer and copy time."""
        block = self.ranks[rank]
        block.compute_scale, block.link_scale, block.copy_scale = scales
        block.amount, block.fault = amount, fault
        block.epoch += 1

    def progress(self, rank: int) -> Progress:
        """How far the rank is."""
        block = self.ranks[rank]
        return Progress(block.iterations, block.iteration_seconds, block.compute_seconds, block.collective_seconds)

    def put_id(self, unique_id: bytes) -> None:
        """Rank 0: publish the world's unique id."""
        ctypes.memmove(self.head.id, unique_id, 128)
        self.head.id_ready = 1

    def wait_id(self) -> bytes:
        """The other ranks: the id, as soon as it is there."""
        while not self.head.id_ready:
            time.sleep(0.005)
        return bytes(self.head.id)


def remove(path: Path) -> None:
    """Delete the file if it is there."""
    if path.exists():
        os.unlink(path)
