"""Rows become arrays: counters rates, gaps unknown, order and repetition harmless."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from detector.timeseries.live_window import Window
from detector.timeseries.rows import rows_of

SECOND = 10**9


def one(table: str, times: list[float], column: str, values: list[float | None], **more: list[str]) -> pa.Table:
    """Rows of one machine."""
    machine = more.pop("machine", ["m0"] * len(times))
    return pa.table({"time": [int(t * SECOND) for t in times], "machine": machine, **more, column: values})


def held(window: Window, now: float) -> dict[tuple[str, str | None], float]:
    """The first metric of every entity at `now` seconds."""
    return dict(zip(window.entities, window.snapshot(int(now * SECOND), 2.5)[0].tolist(), strict=True))


def test_counter_becomes_rate_and_reset_is_unknown() -> None:
    """A counter that falls says nothing for that step, and speaks again with the next."""
    times, counts = [1.0, 3.0, 5.0, 7.0], [100, 160, 20, 90]
    rates = []
    window = Window("gpu")
    for at, count in zip(times, counts, strict=True):
        window.feed(rows_of("gpu", one("gpu", [at], "pcie_receive_bytes_total", [count], gpu=["3"])))
        rates.append(held(window, at)["m0", "gpu:3"])
    assert np.array_equal(rates, [np.nan, 30.0, np.nan, 35.0], equal_nan=True)


def test_counter_keeps_its_precision() -> None:
    """A petabyte counter's rate does not drown in a float32's rounding."""
    window = Window("rdma")
    counts = [4 * 10**15, 4 * 10**15 + 7000]
    window.feed(rows_of("rdma", one("rdma", [1, 2], "transmit_bytes_total", counts, port=["mlx5_0/1"] * 2)))
    assert held(window, 2) == {("m0", "rdma:mlx5_0/1"): 7000.0}


def test_counters_as_drivers_name_them_are_context() -> None:
    """Unknown columns of ports are judged only where the name has a unit; those of other tables always."""
    for table, metrics in (("rdma", ["lost_frames_total"]), ("host", ["rnr_nak_retry_err", "lost_frames_total"])):
        window = Window(table)
        for name in ("rnr_nak_retry_err", "lost_frames_total"):
            window.feed(rows_of(table, one(table, [1, 2], name, [5, 6], port=["mlx5_0/1"] * 2)))
        assert window.metrics == metrics


def test_silence_becomes_unknown() -> None:
    """A reading is held for two and a half steps and no longer."""
    window = Window("host")
    window.feed(rows_of("host", one("host", [1, 2, 3], "load", [5, 6, 7])))
    assert held(window, 5.4)["m0", None] == 7.0
    assert np.isnan(held(window, 5.6)["m0", None])


def test_communicators_are_folded_into_their_gpu() -> None:
    """Slots of one GPU add up where they count, and give their largest where they measure."""
    columns = {
        "time": [SECOND] * 3 + [2 * SECOND] * 3,
        "machine": ["m1"] * 6,
        "gpu": ["0", "0", "1"] * 2,
        "slot": ["0", "1", "0"] * 2,
        "operations_total": [10, 20, 30, 15, 27, 41],
        "send_pending_ratio": [0.1, 0.2, 0.3, 0.4, 0.6, 0.5],
    }
    window = Window("nccl")
    window.feed(rows_of("nccl", pa.table(columns)))
    shown = dict(zip(window.metrics, window.snapshot(2 * SECOND, 2.5).tolist(), strict=True))
    assert window.entities == [("m1", "gpu:0"), ("m1", "gpu:1")]
    assert shown["operations_total"] == [12.0, 11.0]
    assert np.allclose(shown["send_pending_ratio"], [1.0, 0.5])


def test_unknown_table_and_odd_columns() -> None:
    """String columns of an unknown table are keys, numeric keys of a known one are read as text, lists are left out."""
    rows = rows_of("fans", pa.table({"time": [5], "machine": ["a"], "place": ["top"], "rpm": [8], "x": [[1, 2]]}))
    assert (rows.idents, rows.metrics) == ((("a", "top"),), ("rpm",))
    rows = rows_of("gpu", pa.table({"time": [5], "machine": ["a"], "gpu": [7], "power_watts": [311.0]}))
    assert rows.idents == (("a", "7"),)


def test_numbers_beyond_all_quantities_are_unknown() -> None:
    """Infinities and numbers too large to be summed read as unknown; what comes after them is known again."""
    window = Window("host")
    window.feed(rows_of("host", one("host", [1, 2], "load_total", [-1e308, 1e308])))
    assert np.isnan(held(window, 2)["m0", None])
    window.feed(rows_of("host", one("host", [3, 4, 5], "load_total", [float("inf"), 8.0, 19.0])))
    assert held(window, 5)["m0", None] == 11.0


def test_devices_with_a_key_left_out_stay_apart() -> None:
    """The other keys still distinguish devices where the first key is null."""
    keys = {"zone": pa.array([None, None], pa.string()), "disk": ["sda", "sdb"]}
    window = Window("disks")
    window.feed(rows_of("disks", pa.table({"time": [SECOND] * 2, "machine": ["m0"] * 2, **keys, "busy": [3.0, 5.0]})))
    assert held(window, 1) == {("m0", "disks:sda"): 3.0, ("m0", "disks:sdb"): 5.0}


@settings(max_examples=60)
@given(
    st.lists(st.integers(0, 10**12), min_size=2, max_size=40),
    st.lists(st.integers(0, 60), min_size=1, max_size=5),
)
def test_rates_are_never_negative(counts: list[int], cuts: list[int]) -> None:
    """The rate of a counter is unknown or at least 0, whatever the counter does and however rows are parcelled."""
    table = one("gpu", [float(n + 1) for n in range(len(counts))], "pcie_replay_total", counts, gpu=["0"] * len(counts))
    window = Window("gpu")
    for low, high in zip([0, *sorted(cuts)], [*sorted(cuts), len(counts)], strict=True):
        window.feed(rows_of("gpu", table.slice(low, max(0, high - low))))
    rate = held(window, len(counts))["m0", "gpu:0"]
    last = counts[-1] - counts[-2]
    assert rate == np.float32(last) if last >= 0 else np.isnan(rate)


@settings(max_examples=60)
@given(st.permutations(range(12)), st.integers(0, 12))
def test_order_and_repetition_do_not_matter(order: list[int], again: int) -> None:
    """Rows in any order within a read, and rows read twice, leave the window as rows in order do."""
    times, values = [1.0 + n // 3 for n in range(12)], [float(10 * n + 1) for n in range(12)]
    names = [f"m{n % 3}" for n in range(12)]
    ordered = one("host", times, "load", values, machine=names)
    tidy, messy = Window("host"), Window("host")
    tidy.feed(rows_of("host", ordered))
    messy.feed(rows_of("host", ordered.take(order)))
    messy.feed(rows_of("host", ordered.slice(0, again)))
    assert held(messy, 4.0) == held(tidy, 4.0) == {("m0", None): 91.0, ("m1", None): 101.0, ("m2", None): 111.0}


def test_late_row_is_dropped() -> None:
    """A row older than what its series has shown changes nothing."""
    window = Window("host")
    window.feed(rows_of("host", one("host", [1, 2, 4], "load", [3, 5, 9])))
    window.feed(rows_of("host", one("host", [3], "load", [77])))
    assert held(window, 4)["m0", None] == 9.0


def test_step_is_learned() -> None:
    """The step comes from the rows, not from an assumption."""
    for step in (0.5, 2.0, 60.0, 300.0):
        window = Window("host")
        window.feed(rows_of("host", one("host", [1 + step * n for n in range(6)], "load", [1, 2, 3, 4, 5, 6])))
        assert window.step_ns == int(step * SECOND)
