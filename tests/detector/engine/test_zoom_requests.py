"""Zooms: suspects, a few of a task, each once in a while; and the detector does not judge what zooms read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from detector.config import Config
from detector.engine.pipeline import Detector, read_rows, replay, walk
from detector.engine.zoom_requests import ZoomPlanner
from store.zoom_requests import ZoomRequest

SECOND = 10**9
Make = Callable[..., pa.Table]


def ordered(store: Any, config: Config | None = None) -> list[tuple[int, str, ZoomRequest]]:
    """All requests over a recording: when, to which machine, and what."""
    detector, planner = Detector(), ZoomPlanner(config or Config())
    found = []
    for now, rows in walk(store):
        detector.step(now, rows)
        found += [(now, *one) for one in planner.orders(now, detector.state.panels())]
    return found


def bend(count: int) -> Callable[[np.ndarray], None]:
    """So many machines go their own way after three minutes, each another."""

    def change(values: np.ndarray) -> None:
        for at in range(count):
            values[180:, at] += (120 + 9 * at) * np.where(np.arange(len(values) - 180) % (11 + at) > 5, 1, 0.4)

    return change


def test_a_suspect_is_looked_at_before_anything_is_said(memory: Any, fleet: Make) -> None:
    """The source that differs is asked for, within bounds, and not again while the machine rests."""
    store = memory({"gpu": fleet("power_watts", machines=9, steps=420, bend=bend(1))})
    said = list(replay(store))
    ((when, machine, order),) = ordered(store)
    assert (machine, order.source, order.hertz, order.until - order.time) == ("m0", "gpu", 20.0, 20 * SECOND)
    assert order.time == when < said[0].time
    assert ordered(store, replace(Config(), zoom_seconds=0.0)) == []


def test_a_machine_is_looked_at_again_after_a_rest(memory: Any, fleet: Make) -> None:
    """Five minutes later at the soonest."""
    store = memory({"gpu": fleet("power_watts", machines=9, steps=720, bend=bend(1))})
    first, second = (when for when, _, _ in ordered(store))
    assert 300 * SECOND <= second - first < 305 * SECOND


def test_few_of_a_task_at_a_time(memory: Any, fleet: Make) -> None:
    """Two at once are both looked at; what no agent reads faster is looked at through what it does."""
    two = ordered(memory({"gpu": fleet("power_watts", machines=12, steps=400, bend=bend(2))}))
    assert [machine for _, machine, _ in sorted(two, key=lambda one: one[1])] == ["m0", "m1"]
    strange = ordered(memory({"meter": fleet("volts", machines=9, steps=420, bend=bend(1))}))
    assert [(machine, order.source) for _, machine, order in strange] == [("m0", "host")]


def test_health_is_left_alone(memory: Any, fleet: Make) -> None:
    """Where no machine differs none is zoomed."""
    assert ordered(memory({"gpu": fleet("power_watts", machines=9, steps=400)})) == []


def test_what_is_read_closer_is_not_judged(memory: Any, fleet: Make) -> None:
    """Rows of a zoom are left out of what the detector reads, and so is its step."""
    usual = fleet("cpu_utilization_ratio", machines=6, steps=90)
    closer = fleet("cpu_utilization_ratio", machines=1, steps=90, step_s=0.05, bend=lambda values: values.fill(9e9))
    store = memory({"host": usual, "host_zoom": closer})
    assert set(read_rows(store, 0, 2**62)) == {"host"}
    assert len(list(walk(store))) == len(list(walk(memory({"host": usual}))))
