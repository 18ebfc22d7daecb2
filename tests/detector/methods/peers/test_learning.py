"""What is read at a step: the newest readings, smoothed, of those that have any."""

from __future__ import annotations

import pyarrow as pa
import pytest

from detector.config import Config
from detector.methods.peers.learning import read
from detector.methods.peers.state import Panel
from detector.timeseries.live_window import Window
from detector.timeseries.rows import rows_of

SECOND = 10**9


@pytest.mark.parametrize(("step_s", "smoothed"), [(10, 0.18), (1, 0.06)])
def test_a_reading_is_held_for_a_second_longer_than_a_step(step_s: int, smoothed: float) -> None:
    """A machine without rows reads what it did in this phase of an iteration, and not in the next ones too.

    1.4 steps after its last reading, 0.06, that is held at steps of a second, and gone at steps of ten.
    """
    panel = Panel(Window("gpu"))
    for step, reading in enumerate((0.57, 0.30, 0.06)):
        time = step * step_s * SECOND
        rows = {"time": [time], "machine": ["m0"], "gpu": ["0"], "tensor_active_ratio": [reading]}
        panel.window.feed(rows_of("gpu", pa.table(rows)))
        read(panel, time, Config(smoothing_seconds=3.0, min_smoothing_samples=3))
    now = int(3.4 * step_s * SECOND)
    values = read(panel, now, Config(smoothing_seconds=3.0, min_smoothing_samples=3))
    assert values is not None
    assert values[0, 0] == pytest.approx(smoothed)
