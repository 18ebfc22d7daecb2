"""Rules: for each, readings that must be reported and readings that must not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from detector.config import Config
from detector.engine.pipeline import Detector, State, judge, replay
from detector.methods.evidence.method import Evidence
from detector.methods.evidence.rules import RULES

SECOND, START = 10**9, 1_700_000_000 * 10**9
STEPS, MACHINES, DEVICES = 260, 6, 2
Bend = Callable[[dict[str, np.ndarray]], None]
GPU = {
    "remap_failed": 0.0,
    "ecc_uncorrected_total": 17.0,
    "ecc_corrected_total": 23.0,
    "nvlink_errors_total": 5.0,
    "pcie_replay_total": 11.0,
    "recovery_action": 0.0,
    "pcie_width": 16.0,
    "pcie_generation": 5.0,
    "nvlink_links_up": 18.0,
    "throttle_reasons": 4.0,
    "duty_cycle_ratio": 0.93,
    "sm_clock_hertz": 1.71e9,
}
LOSSES = ("packet_sequence_errors_total", "ack_timeouts_total", "symbol_errors_total")
COUNTS = *LOSSES, "pfc_transmit_frames_total"
RDMA = {"link_up": 1.0, "rate_bits_per_second": 4e11, "link_downed_total": 3.0, **dict.fromkeys(COUNTS, 41.0)}


def readings(table: str, bend: Bend, skip: tuple[str, ...] = ()) -> pa.Table:
    """A healthy table of six machines with two devices, [step, machine, device], bent before it is written."""
    shape = (STEPS, MACHINES, DEVICES)
    levels = GPU if table == "gpu" else RDMA
    columns = {name: np.full(shape, level) for name, level in levels.items()}
    if table == "rdma":
        flow = np.arange(STEPS)[:, None, None] * 1.7e9 + np.zeros(shape)
        columns |= {"transmit_bytes_total": flow.copy(), "receive_bytes_total": flow.copy()}
    bend(columns)
    step, machine, device = (index.reshape(-1) for index in np.indices(shape))
    keys = np.array(("0", "1") if table == "gpu" else ("mlx5_0/1", "mlx5_1/1"))
    found = {
        "time": START + step * SECOND,
        "machine": np.char.add("m", machine.astype(str)),
        table_key(table): keys[device],
    }
    return pa.table(found | {name: values.reshape(-1) for name, values in columns.items() if name not in skip})


def table_key(table: str) -> str:
    """The table's key column."""
    return {"gpu": "gpu", "rdma": "port"}[table]


def put(column: str, value: float, start: int = 40, end: int = STEPS, machine: int = 2, device: int = 1) -> Bend:
    """One device reads this value for some steps."""

    def bend(columns: dict[str, np.ndarray]) -> None:
        columns[column][start:end, machine, device] = value

    return bend


def both(*bends: Bend) -> Bend:
    """One after the other."""

    def bend(columns: dict[str, np.ndarray]) -> None:
        for one in bends:
            one(columns)

    return bend


def errs(column: str, rate: float, start: int = 40, end: int = STEPS, every: int = 1, machine: int = 2) -> Bend:
    """One device counts so many errors a second, all of them in one second of `every`."""

    def bend(columns: dict[str, np.ndarray]) -> None:
        rose = np.where((np.arange(STEPS) >= start) & (np.arange(STEPS) < end), rate * every, 0.0)
        rose[np.arange(STEPS) % every != 0] = 0.0
        columns[column][:, machine, 1] += rose.cumsum()

    return bend


def everywhere(column: str, value: float) -> Bend:
    """From some step on all devices of all machines read this value."""

    def bend(columns: dict[str, np.ndarray]) -> None:
        columns[column][70:] = value

    return bend


def still(machine: int, start: int, end: int = STEPS) -> Bend:
    """No byte flows through a machine's second port for some steps."""

    def bend(columns: dict[str, np.ndarray]) -> None:
        for name in ("transmit_bytes_total", "receive_bytes_total"):
            columns[name][start:end, machine, 1] = columns[name][start, machine, 1]

    return bend


def swapped(column: str, value: float) -> Bend:
    """Every machine has one device that reads this value, and on one machine it is the other device."""

    def bend(columns: dict[str, np.ndarray]) -> None:
        columns[column][:, :, 1] = value
        columns[column][:, 4, 1], columns[column][:, 4, 0] = columns[column][:, 4, 0].copy(), value

    return bend


def alone(memory: Any, **tables: pa.Table) -> list[Any]:
    """Verdicts of the method over these tables, without the other methods: they would take most of the time."""
    return list(judge(memory(tables), Detector(state=State(methods=[Evidence(Config())]))))


def said(memory: Any, table: str, bend: Bend, skip: tuple[str, ...] = ()) -> list[Any]:
    """Verdicts of the method over such readings."""
    return alone(memory, **{table: readings(table, bend, skip)})


FLAPS = "has a link that flaps: down twice within five minutes"
REPORTED = [
    ("gpu.remap_failed", put("remap_failed", 1.0), 41, "could not remap a faulty row of its memory: replace it"),
    (
        "gpu.ecc_uncorrected_total",
        put("ecc_uncorrected_total", 19.0),
        41,
        "had 2 memory errors that ECC could not mend",
    ),
    (
        "gpu.ecc_corrected_total",
        errs("ecc_corrected_total", 31.0),
        110,
        "corrects 21 memory errors a second",
    ),
    ("gpu.nvlink_errors_total", errs("nvlink_errors_total", 1.7), 112, "has 1.2 NVLink errors a second"),
    ("gpu.nvlink_errors_total", errs("nvlink_errors_total", 26.0), 75, "has 11 NVLink errors a second"),
    ("gpu.pcie_replay_total", errs("pcie_replay_total", 4.9), 117, "sends 3.5 PCIe packets a second again"),
    ("gpu.recovery_action", put("recovery_action", 2.0), 41, "asks for recovery: reboot the machine"),
    ("gpu.pcie_width", put("pcie_width", 8.0), 51, "has 8 PCIe lanes where its peers have 16"),
    ("gpu.pcie_generation", put("pcie_generation", 3.0), 56, "runs PCIe generation 3 under load, its peers 5"),
    ("gpu.nvlink_links_up", put("nvlink_links_up", 12.0), 51, "has 12 NVLinks up where its peers have 18"),
    (
        "gpu.sm_clock_hertz",
        put("sm_clock_hertz", 0.93e9),
        72,
        "runs at 930 MHz under load, less than 0.7 of the clock of its peers",
    ),
    ("gpu.throttle_reasons", put("throttle_reasons", 68.0), 51, "is slowed down by its own protection: too hot"),
    ("gpu.throttle_reasons", put("throttle_reasons", 132.0), 51, "is slowed down by its own protection: power brake"),
    ("rdma.link_up", put("link_up", 0.0), 46, "has its link down"),
    ("rdma.link_up", put("link_up", 0.0, start=0), 10, "has its link down"),
    ("rdma.link_downed_total", put("link_downed_total", 5.0), 41, FLAPS),
    ("rdma.link_up", both(put("link_up", 0.0, 40, 42), put("link_up", 0.0, 90, 93)), 91, FLAPS),
    (
        "rdma.rate_bits_per_second",
        put("rate_bits_per_second", 1e11),
        46,
        "runs at 100 Gbit/s where its peers run at 400 Gbit/s",
    ),
    ("rdma.packet_sequence_errors_total", errs(LOSSES[0], 5.3), 132, "loses 4.1 packets a second"),
    ("rdma.ack_timeouts_total", errs(LOSSES[1], 1.1, every=2), 122, "waits in vain for 0.82 acknowledgements a second"),
    (
        "rdma.symbol_errors_total",
        errs(LOSSES[2], 61.0),
        122,
        "has 44 symbol errors a second: clean or replace its cable",
    ),
    (
        "rdma.symbol_errors_total",
        both(errs(LOSSES[2], 23.0), errs(LOSSES[0], 7.0)),
        94,
        "has 13 symbol errors a second: clean or replace its cable",
    ),
    (
        "rdma.symbol_errors_total",
        both(errs(LOSSES[2], 19.0), errs(LOSSES[1], 2.2, every=2)),
        97,
        "has 11 symbol errors a second: clean or replace its cable",
    ),
    (
        "rdma.pfc_transmit_frames_total",
        errs("pfc_transmit_frames_total", 12.3e3),
        196,
        "pauses its senders 11,000 times a second: it cannot drain",
    ),
    (
        "rdma.transmit_bytes_total",
        still(2, 40),
        162,
        "has had no traffic for two minutes while its peers have",
    ),
]


@pytest.mark.parametrize(("again", "named"), [(47, set()), (63, {"m2"})])
def test_a_link_that_bounces_has_fallen_once(memory: Any, again: int, named: set[str]) -> None:
    """It falls, comes up and falls again 7 s later: no flapping; again 23 s later it is."""
    falls = both(put("link_downed_total", 4.0), put("link_downed_total", 5.0, again))
    assert {verdict.machine for verdict in said(memory, "rdma", falls)} == named


@pytest.mark.parametrize(("elsewhere", "falls", "named"), [((0,), 2, {"m2"}), ((0, 4), 2, set()), ((0, 4), 3, {"m2"})])
def test_where_links_fall_everywhere_one_of_them_does_so_twice_by_chance(
    memory: Any, elsewhere: tuple[int, ...], falls: int, named: set[str]
) -> None:
    """A link that falls twice is named beside one that fell once; beside two of these it has to fall thrice."""
    others = [put("link_downed_total", 4.0, 21 + 9 * at, machine=at) for at in elsewhere]
    own = [put("link_downed_total", 4.0 + at, (62, 101, 133)[at]) for at in range(falls)]
    assert {verdict.machine for verdict in said(memory, "rdma", both(*others, *own))} == named


def test_a_switch_of_a_rack_takes_the_links_of_half_a_task(memory: Any) -> None:
    """All ports of three of six machines go down at once: each of the three is named, five seconds later."""
    machines = (1, 3, 4)
    falls = both(*(put("link_up", 0.0, 40, STEPS, machine, port) for machine in machines for port in range(2)))
    verdicts = said(memory, "rdma", falls)
    assert {verdict.machine for verdict in verdicts} == {f"m{at}" for at in machines}
    assert {verdict.metric for verdict in verdicts} == {"rdma.link_up"}


@pytest.mark.parametrize(("metric", "bend", "after_s", "words"), REPORTED)
def test_what_is_reported(memory: Any, metric: str, bend: Bend, after_s: int, words: str) -> None:
    """One device is named within the rule's time, with both sides' readings, and never cleared while it lasts."""
    table = metric.partition(".")[0]
    device, name = ("gpu:1", "GPU 1") if table == "gpu" else ("rdma:mlx5_1/1", "port mlx5_1/1")
    (verdict,) = said(memory, table, bend)
    assert (verdict.machine, verdict.device, verdict.metric) == ("m2", device, metric)
    assert verdict.message == f"m2 {name} {words}"
    assert verdict.level == ("warn" if "protection" in words or "a second" in words else "crit")
    assert verdict.time <= START + (after_s + 1) * SECOND
    assert verdict.since <= verdict.time


@pytest.mark.parametrize("metric", ["gpu.pcie_width", "rdma.rate_bits_per_second"])
def test_the_other_methods_change_nothing_of_it(memory: Any, metric: str) -> None:
    """Beside the other methods the verdict of a rule is the same."""
    bend = next(bend for name, bend, *_ in REPORTED if name == metric)
    table = metric.partition(".")[0]
    whole = [v for v in replay(memory({table: readings(table, bend)})) if v.kind == "evidence"]
    assert whole == said(memory, table, bend) != []


def test_every_rule_has_a_case() -> None:
    """Each column that has a rule is in one of the cases above, or in those about sources and switches."""
    ruled = {f"{rule.table}.{rule.column}" for rules in RULES.values() for rule in rules}
    switches = {f"nvswitch.{name}" for name in ("fatal_sxid", "reset_required", "fatal_errors_total")}
    assert ruled == {metric for metric, *_ in REPORTED} | {"source.success"} | switches


HARMLESS = [
    ("gpu", everywhere("ecc_uncorrected_total", 0.0)),
    ("gpu", errs("ecc_corrected_total", 8.0)),
    ("gpu", errs("ecc_corrected_total", 33.0, 40, 70)),
    ("gpu", errs("ecc_corrected_total", 7.0, every=37)),
    ("gpu", errs("nvlink_errors_total", 0.2, every=15)),
    ("gpu", errs("nvlink_errors_total", 173.0, 40, 57)),
    ("rdma", errs("packet_sequence_errors_total", 0.9, every=10)),
    ("rdma", errs("symbol_errors_total", 6.0)),
    ("rdma", both(errs("symbol_errors_total", 4.0), errs("packet_sequence_errors_total", 1.7))),
    ("rdma", both(errs("symbol_errors_total", 13.0), errs("packet_sequence_errors_total", 0.9, every=10))),
    ("rdma", errs("pfc_transmit_frames_total", 2.9e3)),
    ("rdma", errs("pfc_transmit_frames_total", 4.1e4, 40, 90)),
    ("gpu", everywhere("pcie_width", 8.0)),
    ("gpu", put("pcie_width", 8.0, 40, 48)),
    ("gpu", both(put("pcie_generation", 1.0), put("duty_cycle_ratio", 0.0))),
    ("gpu", everywhere("pcie_generation", 1.0)),
    ("gpu", put("sm_clock_hertz", 1.28e9)),
    ("gpu", both(put("sm_clock_hertz", 0.21e9), put("duty_cycle_ratio", 0.0))),
    ("gpu", everywhere("sm_clock_hertz", 0.64e9)),
    ("gpu", everywhere("nvlink_links_up", 6.0)),
    ("gpu", put("throttle_reasons", 5.0)),
    ("gpu", put("recovery_action", np.nan)),
    ("gpu", put("remap_failed", np.nan)),
    ("rdma", put("link_up", 0.0, 40, 44)),
    ("rdma", put("link_downed_total", 4.0)),
    ("rdma", put("link_downed_total", 0.0)),
    ("rdma", everywhere("link_up", 0.0)),
    ("rdma", everywhere("rate_bits_per_second", 1e11)),
    ("rdma", swapped("rate_bits_per_second", 1e11)),
    ("rdma", swapped("link_up", 0.0)),
    ("rdma", still(2, 40, 120)),
    ("rdma", both(*(still(machine, 40) for machine in range(MACHINES)))),
    ("rdma", both(*(still(machine, 0) for machine in range(MACHINES - 1)))),
]


@pytest.mark.parametrize(("table", "bend"), HARMLESS)
def test_what_is_no_fact(memory: Any, table: str, bend: Bend) -> None:
    """What is so on all machines, lasts a moment, is usual at rest or is not known names no machine."""
    assert said(memory, table, bend) == []


def test_a_storm_of_errors_that_ends_is_over_however_great_it_was(memory: Any) -> None:
    """2,000 errors a second for 70 s are over two and a half minutes after the last one."""
    found = said(memory, "gpu", errs("ecc_corrected_total", 2130.0, 20, 90))
    assert [v.level for v in found] == ["warn", "ok"]
    assert found[1].time <= START + (90 + 155) * SECOND


def test_ports_of_one_name_that_lose_packets_together_have_a_switch_in_common(memory: Any) -> None:
    """Four of six machines that lose packets at the ports of one rail are one incident, which names the switch."""
    rail = [errs(LOSSES[0], 4.0 + machine, machine=machine) for machine in (0, 1, 3, 5)]
    first, *_ = said(memory, "rdma", both(*rail))
    assert (first.metric, first.device) == ("rdma.packet_sequence_errors_total", "rdma:mlx5_1/1")
    found = list(replay(memory({"rdma": readings("rdma", both(*rail))})))
    assert len([v for v in found if v.level != "ok"]) == 1
    assert found[0].message.endswith("packets a second, as do 3 others of this name: look at their switch")


@pytest.mark.parametrize(
    ("clocks", "duty", "named"),
    [
        ((1.49, 1.5, 1.33, 1.48, 1.49), 0.91, {"gpu:2"}),
        ((1.49, 1.5, 1.42, 1.48, 1.49), 0.92, set()),
        ((1.49, 1.5, 1.33, 1.34, 1.49), 0.93, set()),
        ((1.49, 1.5, 1.33, 1.41, 1.49), 0.94, set()),
        ((1.49, 1.5, 1.33, 1.48, 1.49), 0.04, set()),
    ],
)
def test_one_gpu_that_clocks_below_all_others_of_its_machine_is_named_from_the_first_reading_on(
    memory: Any, clocks: tuple[float, ...], duty: float, named: set[str]
) -> None:
    """11 % below four GPUs that are alike is a fault, one of one machine too; 5 %, two such GPUs, or rest are not."""
    step, gpu = (index.reshape(-1) for index in np.indices((130, 5)))
    found = {
        "time": START + step * SECOND,
        "machine": np.full(len(step), "m8"),
        "gpu": gpu.astype(str),
        "sm_clock_hertz": 1e9 * np.array(clocks)[gpu],
        "duty_cycle_ratio": np.where(gpu == 2, duty, 0.97),
    }
    verdicts = alone(memory, gpu=pa.table(found))
    assert {v.device for v in verdicts} == named
    assert all(v.level == "warn" and v.time <= START + 62 * SECOND for v in verdicts)
    assert all(
        v.message.endswith("runs at 1.33 GHz under load, more than 8 % below all other GPUs of its machine")
        for v in verdicts
    )


def test_load_is_taken_from_power_where_the_duty_cycle_is_unknown(memory: Any) -> None:
    """A GPU that draws what its peers draw is at work; one that draws little rests its link."""

    def at(watts: float) -> Bend:
        def bend(columns: dict[str, np.ndarray]) -> None:
            columns["power_watts"] = np.full((STEPS, MACHINES, DEVICES), 611.0)
            columns["power_watts"][:, 2, 1] = watts
            columns["pcie_generation"][40:, 2, 1] = 4.0

        return bend

    assert [v.metric for v in said(memory, "gpu", at(588.0), ("duty_cycle_ratio",))] == ["gpu.pcie_generation"]
    assert said(memory, "gpu", at(71.0), ("duty_cycle_ratio",)) == []


def test_a_machine_at_rest_has_nothing_to_send(memory: Any) -> None:
    """No traffic is reported of a machine at work, and of none with idle GPUs or that never had any."""

    def verdicts(*bends: Bend, flow: Bend) -> list[tuple[str, str]]:
        tables = {"gpu": readings("gpu", both(*bends)), "rdma": readings("rdma", flow)}
        return [(v.machine, v.metric) for v in alone(memory, **tables)]

    rests = [put("duty_cycle_ratio", 0.0, machine=2, device=device) for device in range(DEVICES)]
    assert verdicts(rests[0], flow=still(2, 40)) == [("m2", "rdma.transmit_bytes_total")]
    assert verdicts(*rests, flow=still(2, 40)) == []
    assert said(memory, "rdma", still(2, 0)) == []


def test_what_heals_is_cleared_after_a_while(memory: Any) -> None:
    """A link that stays up, a rate that is back: cleared once, half a minute later."""
    for column, value in (("link_up", 0.0), ("rate_bits_per_second", 2e11), ("pcie_width", 4.0)):
        table = "gpu" if column == "pcie_width" else "rdma"
        first, second = said(memory, table, put(column, value, 40, 80))
        assert (first.level, second.level, second.metric) == ("crit", "ok", f"{table}.{column}")
        assert 28 * SECOND <= second.time - (START + 80 * SECOND) <= 32 * SECOND
        assert second.message.endswith(f"no longer shows this ({table}.{column})")


def test_memory_errors_stand_until_the_gpu_was_reset(memory: Any) -> None:
    """A count that stays is no recovery, nor is one that is not known; a count that restarts is."""
    lost = both(put("ecc_uncorrected_total", 23.0, 40, 90), put("ecc_uncorrected_total", np.nan, 90))
    assert [v.level for v in said(memory, "gpu", lost)] == ["crit"]
    reset = both(put("ecc_uncorrected_total", 23.0, 40, 90), put("ecc_uncorrected_total", 0.0, 90))
    assert [v.level for v in said(memory, "gpu", reset)] == ["crit", "ok"]


def test_all_ports_of_a_machine_are_its_own(memory: Any) -> None:
    """One machine of which both ports are down is named, and no other."""
    own = both(put("link_up", 0.0, device=0), put("link_up", 0.0, device=1))
    assert {v.machine for v in said(memory, "rdma", own)} == {"m2"}


def test_a_source_that_fails_on_one_machine_alone_is_noted(memory: Any) -> None:
    """GPUs that cannot be read on one machine are a note; a source of software, or a failure everywhere, is none."""

    def fails(source: str, machines: tuple[int, ...]) -> pa.Table:
        step, machine = (index.reshape(-1) for index in np.indices((150, MACHINES)))
        success = np.where((step > 30) & np.isin(machine, machines), 0.0, 1.0)
        names = np.char.add("m", machine.astype(str))
        return pa.table(
            {"time": START + step * SECOND, "machine": names, "source": [source] * len(step), "success": success}
        )

    def verdicts(table: pa.Table) -> list[tuple[str, str, str]]:
        detector = Detector()
        assert list(judge(memory({"source": table}), detector)) == []
        return [(v.machine, v.level, v.message) for v in detector.state.incidents.take_notes()]

    message = "m4 cannot be read by its source rdma, where its peers can"
    assert verdicts(fails("rdma", (4,))) == [("m4", "note", message)]
    assert verdicts(fails("cuda", (4,))) == []
    assert verdicts(fails("rdma", tuple(range(MACHINES)))) == []
