"""GPUs that get hotter than their peers at the same power, before they are slowed down for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from detector.methods.peers.slow.warming import Warming
from detector.stats.grouped import groups_of
from tests.detector.engine.test_harm import MACHINES, ONSET, SECOND, START, STEPS, Bend, tables, training, watch
from tests.detector.harm.search.test_cause import each_its_own

STEP_S = 2


def heat(rise_k: float, who: int | slice = 4, power: float = 1.0, tau_s: float = 90.0, lasts: int = STEPS) -> Bend:
    """From the onset on some machines' GPUs come near to a temperature that is so much higher, as a heat sink does."""
    rng = np.random.default_rng(29)

    def bend(found: dict[str, np.ndarray]) -> None:
        usual = 58 + np.linspace(-7, 9, MACHINES) + 0.4 * rng.normal(0, 1, (STEPS, MACHINES))
        since_s = STEP_S * np.arange(STEPS - ONSET)[:, None]
        rise = rise_k * (1 - np.exp(-since_s / tau_s))
        rise[lasts - ONSET :] = 0.0
        usual[ONSET:, who] += rise if isinstance(who, slice) else rise[:, 0]
        found["gpu.temperature_celsius"] = np.round(usual)
        found["gpu.power_watts"][ONSET:, who] *= power

    return bend


def said(memory: Any, bend: Bend) -> list[tuple[str, str | None, str, str, float]]:
    """Machine, device, reading, level, and how long (s) after the onset, of all that is said."""
    verdicts = watch(memory, tables(training(bend), step_s=STEP_S))[0]
    first = tables(training())["gpu"]["time"][0].as_py() + ONSET * STEP_S * 10**9
    return [(one.machine, one.device, one.metric, one.level, (one.time - first) / 1e9) for one in verdicts]


def test_a_gpu_that_gets_hotter_at_the_same_power_is_named(memory: Any) -> None:
    """By 15 K within a few minutes, its time constant being 90 s; once, as a warning, before it is slow for it."""
    ((*who, delay_s),) = said(memory, heat(15.0))
    assert who == ["m4", "gpu:0", "gpu.temperature_celsius", "warn"]
    assert 60 < delay_s < 150


def test_machines_that_got_warmer_together_have_to_be_warm_for_any_air(memory: Any) -> None:
    """Two of seven that are 8 K warmer breathe warmer air; alone it is a fault of cooling, and 20 K are one of any."""
    assert said(memory, heat(8.5, who=slice(4, 6))) == []
    assert [one[0] for one in said(memory, heat(8.5))] == ["m4"]
    assert {one[2] for one in said(memory, heat(20.0, who=slice(4, 6)))} == {"gpu.temperature_celsius"}


@pytest.mark.parametrize(
    "bend",
    [
        heat(4.5),
        heat(15.0, power=1.14),
        heat(15.0, who=slice(None)),
        heat(15.0, who=slice(0, 3)),
        heat(17.0, lasts=ONSET + 20),
        heat(11.0, tau_s=0.5, lasts=ONSET + 20),
    ],
    ids=["by a little", "by more work", "the room", "half of the room", "for less than a minute", "a sensor"],
)
def test_warmth_that_is_no_fault(memory: Any, bend: Bend) -> None:
    """Four degrees, more heat for more power, warm air for all or for many, and a moment name no GPU."""
    assert [one for one in said(memory, bend) if one[2] == "gpu.temperature_celsius"] == []


@pytest.mark.parametrize(("who", "named"), [(4, ["m4"]), (slice(None), []), (slice(0, 3), [])])
def test_where_each_machine_has_its_own_task_the_others_tell_what_the_room_does(
    memory: Any, who: int | slice, named: list[str]
) -> None:
    """Machines at different loads, each with one GPU: one that gets hotter at its own is named by its past."""

    def loads(found: dict[str, np.ndarray]) -> None:
        heat(15.0, who=who)(found)
        found["gpu.power_watts"] *= np.linspace(0.6, 1.3, MACHINES)
        found["gpu.tensor_active_ratio"] *= np.linspace(0.9, 0.4, MACHINES)

    verdicts, _ = watch(memory, each_its_own(tables(training(loads), step_s=STEP_S)))
    hot = [one for one in verdicts if one.metric == "gpu.temperature_celsius"]
    assert [one.machine for one in hot] == named
    assert all("(before: 6" in one.message for one in hot)


def test_a_gpu_that_always_was_hot_is_usual(memory: Any) -> None:
    """Nine degrees more than the median in the hottest place of the rack are a trait of that place."""
    assert said(memory, heat(0.0)) == []


def test_a_cool_gpu_that_comes_to_read_what_its_peers_do_is_none_the_worse(memory: Any) -> None:
    """Fans that ran too fast are back to normal: 15 K more, and still below the median."""

    def bend(found: dict[str, np.ndarray]) -> None:
        heat(15.0, who=2)(found)
        found["gpu.temperature_celsius"][:, 2] -= 17.0

    assert said(memory, bend) == []


def test_who_cools_more_slowly_after_the_room_was_warm_is_not_said(memory: Any) -> None:
    """Three of seven got warmer, two of them are as before: 5 K that are left on the third are no fault of it."""

    def bend(found: dict[str, np.ndarray]) -> None:
        heat(15.0, who=slice(4, 7))(found)
        found["gpu.temperature_celsius"][ONSET + 90 :, 6] -= 10.0
        found["gpu.temperature_celsius"][ONSET + 90 :, 4:6] -= 15.0

    assert said(memory, bend) == []


def test_warmth_that_the_operator_has_cleared_is_usual(memory: Any) -> None:
    """What stays as warm as it was when its verdict was cleared is not said again."""
    order = {"time": START + 320 * STEP_S * SECOND, "machine": "m4", "source": "operator", "code": "clear"}
    cleared = pa.Table.from_pylist([order | {"severity": "info", "message": "checked"}])
    verdicts = watch(memory, tables(training(heat(15.0)), step_s=STEP_S) | {"event": cleared})[0]
    assert [one.machine for one in verdicts] == ["m4"]


def test_what_was_usual_in_another_task_says_nothing() -> None:
    """A GPU that comes to another task is warm beside its new peers from the first second on: no finding of theirs."""
    warming, groups = Warming(), groups_of(np.zeros(MACHINES, np.int64))
    power = np.full(MACHINES, 520.0, np.float32)
    apart = np.linspace(-2, 2, MACHINES, dtype=np.float32)
    for second in range(0, 600, STEP_S):
        warming.update(second * SECOND, 58 + apart, power, groups, np.arange(MACHINES))
    warming.reset(np.array([4, MACHINES + 3]))
    apart[[3, 4]] += 15
    for second in range(600, 720, STEP_S):
        warming.update(second * SECOND, 58 + apart, power, groups, np.arange(MACHINES))
    assert warming.found(groups).tolist() == [3]


def test_who_has_no_machines_beside_it_any_more_is_no_finding() -> None:
    """A GPU that was hot beside the machines of other tasks is not judged, nor found, once these have left."""
    warming, groups = Warming(), groups_of(np.zeros(MACHINES, np.int64))
    power, heat_c = np.full((2, MACHINES), [[410.0], [61.0]], np.float32)
    for second in range(0, 720, STEP_S):
        heat_c[2] += 17 if second == 600 else 0
        warming.update(second * SECOND, heat_c, power, groups, np.arange(MACHINES))
    assert warming.found(groups).tolist() == [2]
    assert warming.found(groups_of(np.full(MACHINES, -1))).tolist() == []


def test_it_stays_named_when_it_draws_less_and_is_over_when_it_is_cool(memory: Any) -> None:
    """A protection takes some of its power away, and half of the rise: one warning, and one end of it."""

    def bend(found: dict[str, np.ndarray]) -> None:
        heat(18.0, lasts=ONSET + 150)(found)
        found["gpu.temperature_celsius"][ONSET + 115 : ONSET + 150, 4] -= 6.0

    assert len(said(memory, bend)) == 1
