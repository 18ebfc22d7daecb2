"""One rank of an emulated training task as a process: options, signals, the report at the end.

SIGTERM and SIGINT end it within a second, even out of a collective that hangs; SIGUSR1 writes the report and goes on.
"""

from __future__ import annotations

import argparse
import gc
import os
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from emulator.libraries.nvidia import NvidiaError, prepare, take_over
from emulator.shared.errors import CallError
from emulator.shared.fabric import Fabric, FabricError
from emulator.training.ctypes_api import Calls
from emulator.training.experts import ExpertsRank
from emulator.training.pipelined import InterleavedRank, PipelinedRank
from emulator.training.rank import Rank
from emulator.training.replaying import ReplayingRank
from emulator.training.run_ahead import RunAheadRank
from emulator.training.task import Options

RANKS = {
    "blocking": Rank,
    "ahead": RunAheadRank,
    "graphs": ReplayingRank,
    "1f1b": PipelinedRank,
    "interleaved": InterleavedRank,
    "experts": ExpertsRank,
}
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


@dataclass(frozen=True)
class Place:
    """The fabric's file, the folder of the libraries, whether its libnccl is NVIDIA's own, and how is trained."""

    fabric: Path
    folder: Path
    real: bool
    training: str


def parse(arguments: Sequence[str]) -> tuple[Options, Place]:
    """The options of a rank, and where it finds what."""
    parser = argparse.ArgumentParser(prog="trainer", description="one rank of an emulated training task")
    for name in ("rank", "world"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in ("tensor", "pipeline", "data"):
        parser.add_argument(f"--{name}", type=int, default=1)
    parser.add_argument("--gpu", type=int, default=0, help="index on this machine")
    parser.add_argument("--iterations", type=int, default=0, help="0: for ever")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--micro-batches", type=int, default=2)
    parser.add_argument("--checkpoint-every", type=int, default=240, help="iterations; 0: never")
    parser.add_argument("--evaluation-every", type=int, default=0, help="iterations; 0: never")
    parser.add_argument("--load", type=float, default=0.05, help="seconds of data loading")
    parser.add_argument("--compute", type=float, default=0.14, help="seconds of kernels, all micro-batches")
    parser.add_argument("--optimizer", type=float, default=0.02, help="seconds of the optimizer's kernel")
    parser.add_argument("--checkpoint-seconds", type=float, default=0.5)
    parser.add_argument("--gradient-bytes", type=int, default=250_000_000)
    parser.add_argument("--no-watchdog", dest="watchdog", action="store_false", help="ask NCCL after no errors")
    parser.add_argument("--report", type=Path, required=True, help="JSON file with counts and history")
    parser.add_argument("--fabric", type=Path, required=True)
    parser.add_argument("--library-folder", type=Path, required=True)
    parser.add_argument("--training", choices=tuple(RANKS), default="ahead", help="what waits for what")
    parser.add_argument("--real-nccl", action="store_true", help="the folder's libnccl is NVIDIA's own")
    given = vars(parser.parse_args(arguments))
    place = Place(*(given.pop(name) for name in ("fabric", "library_folder", "real_nccl", "training")))
    options = Options(**given)
    if options.world != options.tensor * options.pipeline * options.data or not 0 <= options.rank < options.world:
        parser.error("world must be tensor x pipeline x data, and rank one of its ranks")
    return options, place


def _load(place: Place, machine: int) -> Calls:
    if place.real:
        prepare(machine, place.folder)
    calls = Calls(place.folder / "libcudart.so.12", place.folder / "libnccl.so.2")
    if place.real:
        take_over(place.folder)
    return calls


def _obey(rank: Rank, trained: threading.Event) -> None:
    """Answer signals until the end; then abort the communicators, which frees a rank that hangs in one."""
    while signal.sigwait(SIGNALS) == signal.SIGUSR1:
        rank.write_report()
    rank.stopping.set()
    trained.wait(0.3)
    rank.abort()
    trained.wait(0.3)
    rank.write_report()
    os._exit(0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train as the arguments say. Exit code 0, or 1 with one line on standard error."""
    options, place = parse(sys.argv[1:] if arguments is None else arguments)
    named = {"FABRIC": place.fabric, "RANK": options.rank, "SEED": options.seed}
    os.environ.update({f"PEERWATCH_{name}": str(value) for name, value in named.items()})
    gc.disable()  # pauses are a fault here, so they come only when ordered
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    trained = threading.Event()
    try:
        fabric = Fabric(place.fabric)
        rank = RANKS[place.training](options, _load(place, options.rank // fabric.head.gpus), fabric)
        threading.Thread(target=_obey, args=(rank, trained), name="signals", daemon=True).start()
        rank.train()
    except (CallError, FabricError, NvidiaError) as error:
        print(f"rank {options.rank}: {error}", file=sys.stderr)
        return 1
    finally:
        trained.set()
    if rank.stopping.is_set():
        threading.Event().wait(5.0)  # the thread that received the stop request ends the process
    rank.write_report()
    return 0


if __name__ == "__main__":
    sys.exit(main())
