"""The baselines: each finds a plain fault, none a healthy fleet's; and what Minder computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detector.config import Config
from detector.evaluation.labels import Fault, Labels
from detector.evaluation.outcome import Counting
from detector.evaluation.run import BASELINES, OURS, measure, methods_of, replay
from detector.methods.baselines.continuity import Candidates
from detector.methods.baselines.distances import DISTANCES, scores
from detector.methods.baselines.minder import VARIANTS

START = 1_700_000_000 * 10**9
SECOND = 10**9
Make = Callable[..., pa.Table]


def bent(values: np.ndarray) -> None:
    """Machine 4 wanders off and swings after three minutes."""
    values[200:, 4] += 30 + 15 * np.sin(np.arange(len(values) - 200))


@pytest.mark.parametrize("name", BASELINES)
def test_a_plain_fault_is_found_and_health_is_not(name: str, memory: Any, fleet: Make) -> None:
    """Each baseline names the machine that leaves its peers after the method's own time, and no other."""
    for fault in (bent, None):
        table = fleet("power_watts", machines=9, steps=520, bend=fault, seed=13)
        faults = (Fault("m4", None, "wander", START + 200 * SECOND, START + 520 * SECOND),) if fault else ()
        store = memory({"meter": table})
        (outcome,) = measure(store, Labels(9, faults), [name], "r", Counting())
        assert outcome.alarms == ()
        assert [100 < (one.delay_s or 0) < 300 for one in outcome.found] == [True] * len(faults)
        assert outcome.state_bytes > 1000


def jittered(table: pa.Table, seed: int) -> pa.Table:
    """The same rows, each machine's up to 30 ms late: the step that is estimated from them wanders by a little."""
    late = np.random.default_rng(seed).integers(0, 30_000_000, table.num_rows)
    return table.set_column(0, "time", pa.array(np.asarray(table["time"]) + late))


def capped(values: np.ndarray) -> None:
    """Machine 11 has 70 % of the power of the others from the third minute on."""
    values[190:, 11] *= 0.7


@pytest.mark.parametrize("name", [*BASELINES, OURS])
def test_an_easy_fault_is_found_by_every_method_although_the_step_jitters(name: str, memory: Any, fleet: Make) -> None:
    """Every method finds one of 16 machines with all its GPUs at 70 % of their power for ten minutes."""
    table = jittered(fleet("power_watts", machines=16, steps=790, bend=capped, seed=17, noise=1.3), 37)
    faults = (Fault("m11", None, "power_cap", START + 190 * SECOND, START + 790 * SECOND),)
    (outcome,) = measure(memory({"meter": table}), Labels(16, faults), [name], "r", Counting())
    assert [one.delay_s is not None for one in outcome.found] == [True]
    assert outcome.alarms == ()


@given(st.lists(st.tuples(st.integers(-1, 3), st.integers(3, 9)), min_size=1, max_size=40))
def test_continuity_keeps_the_newest_candidates_whatever_their_number(notes: list[tuple[int, int]]) -> None:
    """The newest candidates that fit into both lengths stay when the length of the memory changes."""
    candidates, model = Candidates(), []
    for candidate, steps in notes:
        candidates.note(candidate, steps)
        model = [*model, candidate][-steps:]
        held = candidates.ring[candidates.ring >= 0].tolist()
        assert sorted(held) == sorted(one for one in model if one >= 0)


@pytest.mark.parametrize("name", VARIANTS)
def test_every_ablation_of_minder_finds_an_easy_fault(name: str, memory: Any, fleet: Make) -> None:
    """Every ablation names a machine far from its peers for ten minutes; those with continuity name no other."""
    store = memory({"meter": fleet("power_watts", machines=12, steps=800, bend=capped_third, seed=41)})
    said = list(replay(store, name, Config()))
    assert ("m3", "minder") in {(v.machine, v.kind) for v in said}
    assert name == "minder-no-continuity" or {v.machine for v in said} == {"m3"}


def capped_third(values: np.ndarray) -> None:
    """Machine 3 has 70 % of the power of the others from the third minute on."""
    values[210:, 3] *= 0.7


def test_ours_is_what_replay_says(memory: Any, fleet: Make) -> None:
    """The method `peerwatch` gives the verdicts of `replay`."""
    store = memory({"meter": fleet("power_watts", machines=6, steps=400, bend=bent, seed=31)})
    assert {verdict.machine for verdict in replay(store, OURS, Config())} == {"m4"}


def test_a_method_that_is_none() -> None:
    """A wrong name is answered with the right ones."""
    with pytest.raises(ValueError, match=r"no method is called gremlin; there are peerwatch, minder"):
        methods_of("gremlin")


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=40))
def test_a_sort_gives_the_same_sums_as_all_pairs(values: list[float]) -> None:
    """A sort in one dimension gives the same sums as all pairs."""
    points = np.array(values)
    expected = np.abs(points[:, None] - points).sum(1)
    assert DISTANCES["euclidean"](points[:, None]) == pytest.approx(expected, rel=1e-9, abs=1e-3)


@pytest.mark.parametrize(("distance", "order"), [("euclidean", 2), ("manhattan", 1), ("chebyshev", np.inf)])
def test_sums_of_distances_of_all_pairs(distance: str, order: float) -> None:
    """Sums in more dimensions are those of Euclid, Manhattan and Chebyshev."""
    points = np.random.default_rng(5).normal(0, 3, (17, 4))
    expected = np.linalg.norm(points[:, None] - points[None], ord=order, axis=2).sum(1)
    assert DISTANCES[distance](points) == pytest.approx(expected)


@pytest.mark.parametrize("count", [4, 10, 26])
def test_a_lone_outlier_among_few_has_a_bounded_score(count: int) -> None:
    """The score of an outlier among n machines is at most the root of n - 1, however far it is."""
    points = np.zeros((count, 1))
    points[2] = 1e9
    assert scores(points).argmax() == 2
    assert scores(points).max() == pytest.approx((count - 1) ** 0.5)
    assert not scores(np.ones((count, 3))).any()
