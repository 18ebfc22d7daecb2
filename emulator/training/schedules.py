"""Pipeline schedules: what each stage computes in which order, and which transfers go together.

The orders are those of Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters Using
Megatron-LM (SC 2021), sections 2.2.1 (one forward, one backward) and 2.2.2 (interleaved stages).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

CHUNKS: Final = {"1f1b": 1, "interleaved": 2}
"""By schedule, how many parts of the model each stage has."""


class Pass(NamedTuple):
    """A micro-batch through one chunk of a stage, forward or backward."""

    backward: bool
    chunk: int
    batch: int


@dataclass(frozen=True, slots=True)
class Slot:
    """One step of a stage: a pass, if there is one, then transfers with other stages in one group."""

    work: Pass | None
    send_to: tuple[int, ...]
    receive_from: tuple[int, ...]


def order(stage: int, stages: int, batches: int, chunks: int = 1) -> list[Pass]:
    """The passes of a stage: forward ones until the pipeline is full, then one of each, then the backward ones.

    With several chunks, batches are a multiple of the stages.
    """
    total, block = batches * chunks, stages * chunks
    places = [(k % block // stages, k // block * stages + k % stages) for k in range(total)]
    forward = [Pass(False, chunk, batch) for chunk, batch in places]
    backward = [Pass(True, chunks - 1 - chunk, batch) for chunk, batch in places]
    ahead = stages - 1 - stage if chunks == 1 else 2 * (stages - 1 - stage) + (chunks - 1) * stages
    ahead = min(ahead, total)
    steady = [one for pair in zip(forward[ahead:], backward, strict=False) for one in pair]
    return [*forward[:ahead], *steady, *backward[total - ahead :]]


def plan(stages: int, batches: int, chunks: int = 1) -> list[list[Slot]]:
    """By stage, its slots; what a pass needs was sent in an earlier slot, and both ends transfer in the same one."""
    left = [order(stage, stages, batches, chunks) for stage in range(stages)]
    done, slots = set[tuple[bool, int, int]](), [list[Slot]() for _ in range(stages)]
    while any(left):
        now = {
            stage: passes[0]
            for stage, passes in enumerate(left)
            if passes and _ready(passes[0], stage, stages, chunks, done)
        }
        target = {stage: _target(one, stage, stages, chunks) for stage, one in now.items()}
        for stage in range(stages):
            to, sources = target.get(stage), tuple(other for other in target if target[other] == stage)
            slots[stage].append(Slot(now.get(stage), () if to is None else (to,), sources))
        for stage, one in now.items():
            done.add((one.backward, one.chunk * stages + stage, one.batch))
            left[stage].pop(0)
    return slots


def _ready(one: Pass, stage: int, stages: int, chunks: int, done: set[tuple[bool, int, int]]) -> bool:
    """Whether what the pass needs was computed: by the part of the model before it, or behind it on the way back."""
    part = one.chunk * stages + stage
    if not one.backward:
        return part == 0 or (False, part - 1, one.batch) in done
    return part == stages * chunks - 1 or (True, part + 1, one.batch) in done


def _target(one: Pass, stage: int, stages: int, chunks: int) -> int | None:
    """The stage that needs the outcome of a pass; None: the loss, or the input's gradient."""
    part = one.chunk * stages + stage + (-1 if one.backward else 1)
    return part % stages if 0 <= part < stages * chunks else None
