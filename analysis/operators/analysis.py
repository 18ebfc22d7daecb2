"""The whole analysis of a job's communication: iterations, the irregular ones, and the devices that explain them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.operators.candidates import Candidate, rank_candidates
from analysis.operators.iterations import Log, lined_up
from analysis.operators.judging import Judged, irregular, judge, usual_seconds
from analysis.traces.operations import Operations
from detector.attribution.forest import Forest
from detector.stats.arrays import Bools, Floats, Ints


@dataclass(frozen=True, slots=True)
class Summary:
    """Operations of one kind in one communicator."""

    communicator: str
    kind: str
    ranks: int
    operations: int
    median_bytes: float
    """NaN: not in the log."""
    median_seconds: float
    seconds: float
    """Of all, added up over ranks."""
    gigabytes_per_second: float
    """Bytes of an operation over the shortest time that a rank was in it, the median: from the last entry on."""


@dataclass(frozen=True, slots=True)
class Analysis:
    """What a log says."""

    summaries: list[Summary]
    iteration_seconds: Floats
    """Empty where iterations cannot be recognised."""
    usual_seconds: float
    irregular: Bools
    candidates: list[Candidate]
    abnormal: int
    """Operations that were judged abnormal, of all ranks and irregular iterations."""


def analyse(table: Operations, forest: Forest, topology: dict[str, tuple[str, ...]] | None = None) -> Analysis:
    """Analyse a table of operations; `topology` names the switches above each machine."""
    log: Log | None = lined_up(table) if len(table.rank) else None
    if log is None:
        return Analysis(summaries(table), np.empty(0), np.nan, np.empty(0, bool), [], 0)
    judged: list[Judged] = judge(log, forest)
    candidates = rank_candidates(table, log, judged, topology) if judged else []
    seconds = log.iteration_seconds
    abnormal = sum(int(one.abnormal.sum()) for one in judged)
    return Analysis(summaries(table), seconds, usual_seconds(seconds), irregular(seconds), candidates, abnormal)


def summaries(table: Operations) -> list[Summary]:
    """By communicator and kind, the most expensive first."""
    if not len(table.rank):
        return []
    keys, of = np.unique(np.stack([table.communicator, table.kind]), axis=1, return_inverse=True)
    order = np.argsort(of.reshape(-1), kind="stable")
    found = []
    for rows in np.split(order, np.cumsum(np.bincount(of.reshape(-1)))[:-1]):
        seconds, sizes = table.seconds[rows], table.bytes[rows]
        group, kind = keys[:, of.reshape(-1)[rows[0]]]
        found.append(
            Summary(
                table.communicators[group],
                table.kinds[kind],
                len(np.unique(table.rank[rows])),
                len(rows),
                _median(sizes),
                _median(seconds),
                float(np.nansum(seconds)),
                _bandwidth(table.index[rows], sizes, seconds),
            )
        )
    return sorted(found, key=lambda one: -one.seconds)


def _median(values: Floats) -> float:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else float("nan")


def _bandwidth(index: Ints, sizes: Floats, seconds: Floats) -> float:
    """The rank that enters last is in the operation for the shortest time: that is what the transfer takes."""
    number, of = np.unique(index, return_inverse=True)
    shortest = np.full(len(number), np.inf)
    np.fmin.at(shortest, of, seconds)
    largest = np.zeros(len(number))
    np.fmax.at(largest, of, np.nan_to_num(sizes))
    known = np.isfinite(shortest) & (shortest > 0) & (largest > 0)
    return float(np.median(largest[known] / shortest[known])) / 1e9 if known.any() else float("nan")
