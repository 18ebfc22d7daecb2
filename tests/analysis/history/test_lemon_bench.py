"""Whether lemons predict: faults of 28 days against those of the next 28, on a published fault log."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from analysis.history.lemons import rank_lemons
from tests.analysis.infinitehbd import SERVERS, there, troubles

pytestmark = pytest.mark.bench
Floats = NDArray[np.float64]
DAYS, FIRST, LAST, TOP = 28.0, 56, 321, 20


def _window(rows: Floats, begin: float, end: float) -> tuple[Floats, Floats]:
    """[server]: troubles that begin in (begin, end], and the days of it on which the server was up."""
    counts, up = np.zeros(SERVERS), np.full(SERVERS, end - begin)
    for server, start, over in rows:
        counts[int(server)] += begin < start <= end
        up[int(server)] -= max(0.0, min(over, end) - max(start, begin))
    return counts, np.maximum(up, 0.5)


def _auc(score: Floats, positive: NDArray[np.bool_]) -> float:
    one, other = score[positive, None], score[None, ~positive]
    return float(((one > other) + 0.5 * (one == other)).mean())


def _loss(expected: Floats, seen: Floats) -> float:
    """Poisson negative log-likelihood of a forecast per server, without the factorials."""
    return float(np.mean(expected - seen * np.log(np.maximum(expected, 1e-3))))


@there
def test_lemons_predict_later_faults() -> None:
    """The first in the ranking have more faults later than chance; the forecast is better than raw counts."""
    rows, dice, found, lemons = troubles(), np.random.default_rng(1), [], np.zeros(5)
    for at in range(FIRST, LAST, 7):
        counts, up = _window(rows, at - DAYS, at)
        later = _window(rows, at, at + DAYS)[0]
        working = np.ones(SERVERS, bool)
        working[[int(server) for server, start, over in rows if start <= at < over]] = False
        counts, up, later = counts[working], up[working], later[working]
        ranking, hit, jitter = rank_lemons(counts, up * 24), later > 0, dice.random(len(counts)) * 1e-9
        by_count = np.argsort(-(counts + jitter))
        forecast = ranking.rate * 24 * DAYS
        found.append(
            (
                _auc(ranking.rate, hit),
                _auc(counts, hit),
                hit[ranking.order[:TOP]].mean(),
                hit[by_count[:TOP]].mean(),
                hit.mean(),
                _loss(forecast, later),
                _loss(counts, later),
                _loss(np.full(len(later), counts.mean()), later),
            )
        )
        first = ranking.order[: ranking.named]
        repeat = counts >= 2
        lemons += [len(first), hit[first].sum(), forecast[first].sum(), later[first].sum(), repeat.sum()]
    auc, raw_auc, top, raw_top, base, loss, raw_loss, flat_loss = np.mean(found, axis=0)
    print(
        f"\n{len(found)} dates, {DAYS:g} days before against {DAYS:g} after, {SERVERS} servers: AUC {auc:.3f} "
        f"(raw counts {raw_auc:.3f}, chance 0.5); of the first {TOP} {top:.1%} have a fault later (raw counts "
        f"{raw_top:.1%}, all {base:.1%}); loss of the forecast per server {loss:.3f} (raw counts {raw_loss:.3f}, one "
        f"rate for all {flat_loss:.3f}); lemons {lemons[0] / len(found):.1f} a date (machines with two faults or more "
        f"{lemons[4] / len(found):.1f}), {lemons[1] / max(1, lemons[0]):.1%} of them have a fault later, "
        f"{lemons[3]:.0f} faults where {lemons[2]:.0f} were forecast"
    )
    assert top > 2 * base
    assert loss < min(raw_loss, flat_loss)
