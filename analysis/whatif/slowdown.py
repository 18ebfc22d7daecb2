"""What stragglers cost: the job as it was against ideal operations, and with one cause alone or taken away.

Formulas of "Understanding Stragglers in Large Model Training Using What-if Analysis": S = T / T_ideal; waste = 1 - 1/S;
S_X with all operations ideal but those of X; S_w = min(S of its data rank, S of its stage); M_X = (T - T without X) /
(T - T_ideal), where X are the slowest 3 % of workers (M_W) or the last stage (M_S).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from analysis.whatif.balance import evened, forward_backward_correlation
from analysis.whatif.meta_file import JobMeta
from analysis.whatif.model import Model
from analysis.whatif.operations import POINT_TO_POINT
from detector.stats.arrays import Bools, Floats, Ints

Key = TypeVar("Key", int, str)
SLOWEST_SHARE = 0.03
_LEAST_LOSS = 0.01
"""Below this share of the ideal time there is nothing to explain."""


@dataclass(frozen=True, slots=True)
class Slowdown:
    """The measures of one job; times in seconds."""

    meta: JobMeta
    steps: Ints
    """[step]: their numbers."""
    recorded: Floats
    """[step]: as recorded."""
    replayed: Floats
    """[step]: with the recorded operations, without delays between them."""
    ideal: Floats
    """[step]: with ideal operations."""
    by_dp_rank: dict[int, float]
    by_stage: dict[int, float]
    by_type: dict[str, float]
    """S with only the operations of this type as they were; sends and receives of a direction together."""
    by_worker: Floats
    """[stage, data rank]: S_w; NaN where there is no such worker."""
    slowest: tuple[int, ...]
    """Ranks that M_W takes away."""
    worker_share: float | None
    """M_W; None: too little is lost to explain."""
    stage_share: float | None
    """M_S; None also where there is one stage."""
    balance_share: float | None
    """The same with the passes of a step equally long on every data rank and micro-batch of a stage."""
    correlation: float | None
    """Of forward and backward passes of the same micro-batch; None: too few micro-batches."""
    gpus: int
    notes: list[str] = field(default_factory=list)

    @property
    def slowdown(self) -> float:
        """S: mean step time over mean ideal step time."""
        return _ratio(self.replayed, self.ideal)

    @property
    def waste(self) -> float:
        """Share of the GPU time that stragglers cost; 0 where the job is as quick as the ideal one."""
        return max(0.0, 1 - 1 / self.slowdown)

    @property
    def delay(self) -> float:
        """Recorded over replayed step time: what the replay does not know, such as time on the host."""
        return _ratio(self.recorded, self.replayed)

    @property
    def gpu_hours(self) -> float:
        """GPU-hours of the recorded steps."""
        return float(self.recorded.sum()) * self.gpus / 3600

    @property
    def gpu_hours_lost(self) -> float:
        """GPU-hours that stragglers cost."""
        return self.gpu_hours * self.waste


def analyse(model: Model, meta: JobMeta, advance: Callable[[], None] = lambda: None) -> Slowdown:
    """Replay the job with every cause alone; `advance` is called after each replay.

    Raises ValueError where the operations of a step take no time.
    """
    found = model.found
    job = _Replays(model, advance)
    if min(job.real.min(), job.best.min()) <= 0:
        raise ValueError("operations take no time in some steps: duration or end_ts must be in seconds")
    by_type = job.each({name: found.of(*members) for name, members in _types(found.kinds).items()})
    by_dp = job.each({int(at): found.dp_rank == at for at in np.unique(found.dp_rank)})
    by_stage = job.each({int(at): found.stage == at for at in np.unique(found.stage)})
    slowest = _slowest(model, by_dp, by_stage)
    return Slowdown(
        meta, found.steps, found.recorded(), job.real, job.best, by_dp, by_stage, by_type,
        _by_worker(model, by_dp, by_stage), slowest,
        worker_share=job.share(job.replay(~np.isin(found.rank, slowest))),
        stage_share=job.share(job.replay(found.stage < found.stages - 1)) if found.stages > 1 else None,
        balance_share=job.share(model.graph.replay(evened(found, model.lengths))),
        correlation=forward_backward_correlation(found, model.lengths),
        gpus=meta.gpus or len(np.unique(found.rank)),
        notes=list(model.notes),
    )  # fmt: skip


class _Replays:
    """Replays of one job with some operations as they were and the others ideal; `real` and `best` are all and none."""

    def __init__(self, model: Model, advance: Callable[[], None]) -> None:
        self.model, self.advance = model, advance
        every = np.ones(len(model.found), bool)
        self.real, self.best = self.replay(every), self.replay(~every)

    def replay(self, as_it_was: Bools) -> Floats:
        """[step] seconds."""
        self.advance()
        return self.model.graph.replay(np.where(as_it_was, self.model.lengths, self.model.ideal))

    def each(self, parts: dict[Key, Bools]) -> dict[Key, float]:
        """The slowdown of each part that has operations."""
        return {name: _ratio(self.replay(chosen), self.best) for name, chosen in parts.items() if chosen.any()}

    def share(self, without: Floats) -> float | None:
        """How much of the loss is gone in this replay; None where too little is lost."""
        lost = float(self.real.mean() - self.best.mean())
        return float(self.real.mean() - without.mean()) / lost if lost > _LEAST_LOSS * self.best.mean() else None


def replays(model: Model) -> int:
    """How often `analyse` calls its `advance`."""
    found = model.found
    return len(np.unique(found.dp_rank)) + len(np.unique(found.stage)) + len(_types(found.kinds)) + 4


def _types(kinds: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Name -> types; the sends and receives of a direction are one."""
    out: dict[str, tuple[str, ...]] = {}
    for kind in kinds:
        name = f"{kind.split('-')[0]}-pp-comm" if kind in POINT_TO_POINT else kind
        out[name] = (*out.get(name, ()), kind)
    return out


def _slowest(model: Model, by_dp: dict[int, float], by_stage: dict[int, float]) -> tuple[int, ...]:
    """The slowest 3 % of ranks, at least one; of equal ones the lower number."""
    ranks, first = np.unique(model.found.rank, return_index=True)
    pairs = zip(model.found.dp_rank[first].tolist(), model.found.stage[first].tolist(), strict=True)
    scores = np.array([min(by_dp[dp], by_stage[stage]) for dp, stage in pairs])
    order = np.lexsort((ranks, -scores))
    return tuple(ranks[order[: int(np.ceil(SLOWEST_SHARE * len(ranks)))]].tolist())


def _by_worker(model: Model, by_dp: dict[int, float], by_stage: dict[int, float]) -> Floats:
    """[stage, data rank]: the less of the two slowdowns."""
    dp_ranks, dp = np.unique(model.found.dp_rank, return_inverse=True)
    out = np.full((model.found.stages, len(dp_ranks)), np.nan)
    less = np.minimum.outer(list(by_stage.values()), list(by_dp.values()))
    out[model.found.stage, dp] = less[np.unique(model.found.stage, return_inverse=True)[1], dp]
    return out


def _ratio(times: Floats, base: Floats) -> float:
    return float(times.mean() / base.mean())
