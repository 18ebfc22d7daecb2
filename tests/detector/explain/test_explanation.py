"""Explaining a verdict: what moved, since when, compared with which peers, and the likely kind of fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from detector.explain.explanation import Explanation, explain
from detector.explain.root_causes import BUSY, TABLE, Likely, likely
from detector.model.verdict import Verdict
from emulator.simulation.simulate import simulate
from tests.detector.conftest import SECOND, START, Memory

ONSET = START + 200 * SECOND


def verdict_on(machine: str, metric: str, device: str | None = None, **values: Any) -> Verdict:
    """A verdict twenty seconds after the onset."""
    given: dict[str, Any] = {
        "kind": "peer",
        "score": 3.5,
        "since": ONSET,
        "level": "crit",
        "message": "it differs",
        "task": "all",
    }
    given |= values
    return Verdict(time=given["since"] + 20 * SECOND, machine=machine, device=device, metric=metric, **given)


def two_tables(fleet: Callable[..., pa.Table]) -> Memory:
    """Six machines; m2 is 30 W lower from step 210 on, and its clock is lower from step 200 on; m4 a little."""

    def power(values: np.ndarray) -> None:
        values *= 4
        values[210:, 2] -= 90.0

    def clock(values: np.ndarray) -> None:
        values *= 2e7
        values[200:, 2] *= 0.7
        values[200:, 4] *= 0.97
        values[:, 1] *= 0.8  # it always was slower

    tables = [fleet("power_watts", bend=power, seed=3), fleet("sm_clock_hertz", bend=clock, noise=0.1, seed=5)]
    gpu = tables[0].append_column("sm_clock_hertz", tables[1]["sm_clock_hertz"])
    return Memory({"gpu": gpu.append_column("gpu", pa.array(["0"] * gpu.num_rows))})


def test_what_moved(fleet: Callable[..., pa.Table]) -> None:
    """Each metric that moved has both sides' numbers, its own onset, and the curves of machine and band."""
    found = explain(two_tables(fleet), verdict_on("m2", "gpu.sm_clock_hertz", "gpu:0"))
    assert [moved.key for moved in found.moved] == ["gpu.sm_clock_hertz", "gpu.power_watts"]
    clock, power = found.moved
    assert clock.sign == "gpu.sm_clock_hertz-"
    assert (clock.before, clock.value, clock.usual) == pytest.approx((2e9, 1.4e9, 2e9), rel=0.01)
    assert abs(clock.onset - ONSET) <= 2 * SECOND
    assert abs(power.onset - (ONSET + 10 * SECOND)) <= 4 * SECOND
    assert (clock.peers, clock.alike, found.peers) == (5, (1, 1), 5)
    assert clock.band.shape == (3, len(clock.time)) == (3, len(clock.machine))
    assert np.all(clock.band[0] <= clock.band[1])
    assert np.all(clock.band[1] <= clock.band[2])
    assert found.main_shift is clock


def test_runners_up(fleet: Callable[..., pa.Table]) -> None:
    """The runner-up is the next machine by the metric of the verdict, but not one that was always slower."""
    found = explain(two_tables(fleet), verdict_on("m2", "gpu.sm_clock_hertz", "gpu:0"))
    first = found.runners_up[0]
    assert (first.machine, first.device) == ("m4", "gpu:0")
    assert found.moved[0].effect < first.effect < 0
    assert abs(first.effect) == pytest.approx(0.75, abs=0.15)
    assert all(abs(other.effect) < 0.2 for other in found.runners_up[1:])


def test_a_slower_task_is_no_machines_own(fleet: Callable[..., pa.Table]) -> None:
    """A machine of a higher level has not moved when all machines lose a fifth."""

    def bend(values: np.ndarray) -> None:
        values *= 4
        values[:, 3] *= 2
        values[200:] *= 0.8

    gpu = fleet("power_watts", bend=bend)
    store = Memory({"gpu": gpu.append_column("gpu", pa.array(["0"] * gpu.num_rows))})
    assert explain(store, verdict_on("m3", "nccl.active_ratio")).moved == ()


def test_a_store_that_begins_with_the_fault(fleet: Callable[..., pa.Table]) -> None:
    """A store without readings of before compares levels alone, and leaves the change unknown."""
    store = two_tables(fleet)
    late = Memory({"gpu": store.read("gpu", ONSET - SECOND, ONSET + 90 * SECOND)})
    found = explain(late, verdict_on("m2", "gpu.sm_clock_hertz", "gpu:0"))
    clock = next(moved for moved in found.moved if moved.key == "gpu.sm_clock_hertz")
    assert np.isnan(clock.before)
    assert clock.value == pytest.approx(1.4e9, rel=0.01)


def test_silence(fleet: Callable[..., pa.Table]) -> None:
    """A table that ends on this machine alone is gone, and nothing of it has moved."""

    def bend(values: np.ndarray) -> None:
        values[205:, 2] = np.nan

    store = Memory({"host": fleet("cpu_utilization_ratio", bend=bend)})
    found = explain(store, verdict_on("m2", "event.silent", kind="evidence"))
    ((table, device, last),) = found.gone
    assert (table, device) == ("host", None)
    assert abs(last - (START + 204 * SECOND)) <= 3 * SECOND
    assert (found.moved, found.likely.kind.name) == ((), "machine_lost")


def test_a_store_without_the_machine(memory: type[Memory]) -> None:
    """A store without readings of the machine gives no metric and an unknown kind."""
    found = explain(memory({}), verdict_on("m7", "gpu.power_watts"))
    assert (found.moved, found.runners_up, found.gone, found.peers) == ((), (), (), 0)
    assert found.likely.kind.name == "unknown"


def test_few_bins_where_the_verdict_came_late(fleet: Callable[..., pa.Table]) -> None:
    """A verdict long after the onset is drawn with wider bins, and no more of them."""

    def bend(values: np.ndarray) -> None:
        values *= 4
        values[400:, 5] -= 90

    gpu = fleet("power_watts", steps=900, step_s=5.0, bend=bend)
    store = Memory({"gpu": gpu.append_column("gpu", pa.array(["0"] * gpu.num_rows))})
    since = START + 2000 * SECOND
    late = Verdict(since + 1500 * SECOND, "all", "m5", None, "peer", "gpu.power_watts", 2.5, since, "warn", "slow")
    (moved,) = explain(store, late).moved
    assert len(moved.time) <= 240
    assert abs(moved.onset - since) <= 20 * SECOND


KINDS = {
    "slow_gpu": "gpu_heat",
    "power_cap": "gpu_power",
    "slow_link": "network_slow",
    "packet_loss": "network_errors",
    "optics_error": "network_errors",
    "slow_host": "host_cpu",
    "memory_pressure": "memory",
    "gc_pauses": "garbage_collection",
    "pcie_downgrade": "pcie",
    "nvlink_error": "nvlink",
    "storage_error": "storage",
    "nic_down": "link_down",
    "ecc_error": "gpu_memory",
    "gpu_lost": "gpu_lost",
    "rank_exit": "software_crash",
    "machine_unreachable": "machine_lost",
}


def of_fault(fault: str, seed: int) -> tuple[Explanation, str]:
    """The explanation of a fault in a simulated fleet, with a verdict on the machine after twenty seconds."""
    tables, labels = simulate(8, 4, 1.0, fault, seed, gpus=2)
    given = labels["faults"][0]
    store = Memory({name: pa.table(columns) for name, columns in tables.items()})
    verdict = verdict_on(given["machine"], "nccl.active_ratio", given["device"], since=given["start"], task="pretrain")
    return explain(store, verdict, over=given["end"]), given["machine"]


@pytest.mark.parametrize(("fault", "kind"), KINDS.items())
def test_the_likely_kind(fault: str, kind: str) -> None:
    """Each fault of the simulator that has a pattern is recognised by what moved."""
    found, _ = of_fault(fault, 31)
    assert (found.likely.kind.name, found.peers) == (kind, 7)
    assert found.likely.signs


def test_a_healthy_machine() -> None:
    """A healthy machine gets no kind of fault, whichever it is."""
    tables, _ = simulate(8, 4, 1.0, "none", 37, gpus=2)
    store = Memory({name: pa.table(columns) for name, columns in tables.items()})
    since = int(tables["host"]["time"][0]) + 120 * SECOND
    for machine in ("m0000", "m0003", "m0007"):
        verdict = verdict_on(machine, "gpu.power_watts", since=since, task="pretrain")
        found = explain(store, verdict)
        assert (found.likely.kind.name, found.gone) == ("unknown", ())


def test_every_kind_can_be_found() -> None:
    """Each telling sign alone leads to a kind of its own tier, and each kind has its own signs."""
    for tier in TABLE:
        for kind in tier:
            signs = {sign.replace("*", "1"): 2.5 for some in kind.tell for sign in some.split("&")}
            assert likely(signs).kind.name == kind.name, kind.name
            assert kind.words
            assert kind.advice.endswith(".")
            telling = [dict.fromkeys(some.replace("*", "1").split("&"), 1.5) for some in kind.tell]
            assert all(likely(signs).kind in tier for signs in telling)


def test_a_hard_fact_comes_first() -> None:
    """A narrow PCIe link explains any number of readings that tell of congestion."""
    soft = {"rdma.transmit_wait_ticks_total+": 50.0, "nccl.send_pending_ratio+": 9.0}
    assert likely(soft).kind.name == "network_slow"
    assert likely(soft | {"gpu.pcie_width-": 1.5}).kind.name == "pcie"


@pytest.mark.parametrize("late", ["progress.nccl.active_ratio", "nccl.active_ratio-"])
@pytest.mark.parametrize("busy", ["gpu.tensor_active_ratio+", "gpu.sm_active_ratio+"])
def test_who_comes_late_with_a_gpu_at_work_computes_longer(late: str, busy: str) -> None:
    """What others wait for while its GPU is busier than theirs is a GPU; a clock that is low is the better reason."""
    signs = {late: 2.7, "gpu.power_watts+": 3.4}
    assert likely(signs).kind.name == "host_late"
    assert likely(signs | {busy: 5.1}) == Likely(BUSY[0], (late, busy))
    assert likely(signs | {busy: 5.1, "gpu.sm_clock_hertz-": 1.9}).kind.name == "gpu_clock"
    assert likely({busy: 5.1}).kind.name == "unknown"


def test_what_fits_nothing_is_unknown() -> None:
    """Signs without a kind, and signs that only go with one, give the kind unknown."""
    assert likely({"gpu.made_up_ratio+": 40.0, "gpu.temperature_celsius+": 3.0}).kind.name == "unknown"
    assert likely({}).signs == ()
