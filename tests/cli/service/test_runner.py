"""The detector's runner: judges what comes in, once, and survives its store."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from cli.queries.fleet_status import read_fleet_status
from detector.alerts.dispatcher import AlertDispatcher
from detector.config import Config
from detector.service import runner
from detector.service.runner import AGAIN_NS, LATE_NS, Runner
from store.schema.contract import StoreError
from store.schema.sample import Batch, Sample, Value
from store.schema.time import LATEST, SECOND
from store.signed import Signed
from store.sqlite.embedded import Embedded
from tests.detector.alerts.test_dispatcher import Ear

START = 1_700_000_000 * SECOND
STOP = threading.Event()
CLOCK = "sm_clock_hertz"


class Shaky(Embedded):
    """A store that refuses to be written while `shut`."""

    shut = False

    def write(self, batches: Iterable[Batch]) -> None:
        """Write, or fail as a full disk does."""
        if self.shut:
            raise StoreError("the disk is full")
        super().write(batches)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Shaky]:
    """Six minutes of eight machines, of which m3's clock falls by a third after four."""
    generator = np.random.default_rng(23)
    place = Shaky(tmp_path / "s.db")
    for second in range(1, 361):
        clock = 1.7e9 + generator.normal(0, 4e6, 8)
        clock[3] *= 0.66 if second > 240 else 1.0
        at = START + second * SECOND
        place.write([Batch(f"m{n}", at, (Sample("gpu", {"gpu": "0", "sm_clock_hertz": clock[n]}),)) for n in range(8)])
    yield place
    place.close()


def said(store: Embedded) -> list[tuple[str, str]]:
    """Machine and level of the verdicts in the store."""
    return [(row["machine"], row["level"]) for row in store.read("verdict").to_pylist()]


def test_a_verdict_is_written_and_said_once(store: Shaky) -> None:
    """A runner names the slow machine once, and a new runner does not repeat the verdict."""
    runner = Runner(store, Config(), START + 230 * SECOND)
    assert runner.catch_up(START + 235 * SECOND, STOP) == []
    named = runner.catch_up(START + 355 * SECOND, STOP)
    assert {(verdict.machine, verdict.metric) for verdict in named} == {("m3", "gpu.sm_clock_hertz")}
    before = said(store)
    assert before == [(verdict.machine, verdict.level) for verdict in named]
    second_runner = Runner(store, Config(), START + 355 * SECOND)
    assert second_runner.catch_up(START + 358 * SECOND, STOP) == []
    assert said(store) == before


def test_a_detector_that_begins_while_agents_hesitate_judges_as_often_as_others(store: Shaky, tmp_path: Path) -> None:
    """Readings 4 s apart at the start are no measure of what comes: the fault is named when others name it."""
    rare = Embedded(tmp_path / "rare.db")
    for row in store.read("gpu").to_pylist():
        second = (row["time"] - START) // SECOND
        if second > 24 or second % 4 == 0:
            rare.write([Batch(row["machine"], row["time"], (Sample("gpu", {k: row[k] for k in ("gpu", CLOCK)}),))])
    first = []
    for place, begin in ((store, 230), (rare, 21)):
        runner = Runner(place, Config(), START + begin * SECOND)
        turns = (runner.catch_up(START + second * SECOND, STOP) for second in range(begin + 1, 356))
        first.append(next(verdict.time for said in turns for verdict in said if verdict.machine == "m3"))
    rare.close()
    assert abs(first[1] - first[0]) <= SECOND


def forged(at: int, level: str) -> Batch:
    """A verdict that another than the detector has written."""
    values: dict[str, Value] = {"task": "all", "kind": "evidence", "metric": "event.xid", "score": 9.0, "since": at}
    return Batch("m5", at, (Sample("verdict", {**values, "level": level, "message": "forged"}),))


def test_a_verdict_of_the_future_silences_nothing(store: Shaky) -> None:
    """A row dated ten years ahead, from a wrong clock or a forger, does not keep later verdicts from being said."""
    store.write([forged(START + 10 * 365 * 86400 * SECOND, "ok")])
    runner = Runner(store, Config(), START + 230 * SECOND)
    assert {verdict.machine for verdict in runner.catch_up(START + 355 * SECOND, STOP)} == {"m3"}
    assert runner.history == []


def test_a_forged_verdict_is_not_taken_up(store: Shaky) -> None:
    """A verdict without the signature is no incident after a restart and no history for sinks, and hides no other."""
    store.write([forged(START + 229 * SECOND, "crit")])
    assert [one.machine for one in Runner(store, Config(), START + 230 * SECOND).history] == ["m5"]
    runner = Runner(Signed(store, bytes(40)), Config(), START + 230 * SECOND)
    assert (runner.history, runner.detector.state.incidents.open) == ([], {})
    assert {verdict.machine for verdict in runner.catch_up(START + 355 * SECOND, STOP)} == {"m3"}
    second_runner = Runner(Signed(store, bytes(40)), Config(), START + 356 * SECOND)
    assert [one.machine for one in second_runner.history] == ["m3"]


def test_a_shut_store_loses_no_verdict(store: Shaky) -> None:
    """A verdict that could not be written is written when the store can be again."""
    runner = Runner(store, Config(), START + 230 * SECOND)
    store.shut = True
    with pytest.raises(StoreError, match="disk is full"):
        runner.catch_up(START + 355 * SECOND, STOP)
    store.shut = False
    assert [verdict.machine for verdict in runner.catch_up(START + 356 * SECOND, STOP)] == ["m3"]
    assert said(store)[0][0] == "m3"


def test_late_rows_are_judged(store: Shaky, tmp_path: Path) -> None:
    """A runner judges a machine by its rows also where they come three seconds late."""
    late = Embedded(tmp_path / "late.db")
    clocks = [(row["time"], row["machine"], row["sm_clock_hertz"]) for row in store.read("gpu").to_pylist()]
    runner = Runner(late, Config(), START)
    named = []
    for second in range(1, 361):
        at = START + second * SECOND
        arrived = [row for row in clocks if row[0] == at - (3 * SECOND if row[1] == "m3" else 0)]
        late.write([Batch(m, t, (Sample("gpu", {"gpu": "0", "sm_clock_hertz": clock}),)) for t, m, clock in arrived])
        named += runner.catch_up(at - LATE_NS, STOP)
    late.close()
    assert {(verdict.machine, verdict.metric) for verdict in named} == {("m3", "gpu.sm_clock_hertz")}


def test_nothing_later_is_used(store: Shaky) -> None:
    """Stepping second by second or catching up at once gives the same verdicts."""
    steady, late = (Runner(store, Config(), START + 230 * SECOND) for _ in range(2))
    one_by_one = [verdict for second in range(230, 356) for verdict in steady.catch_up(START + second * SECOND, STOP)]
    late.said = 0
    at_once = late.catch_up(START + 355 * SECOND, STOP)
    assert at_once == one_by_one
    assert len(at_once) == 1


def test_who_has_no_peers_is_written_once(tmp_path: Path) -> None:
    """The runner writes once that three machines have no peers, until a fourth comes; a new runner repeats nothing."""
    store = Embedded(tmp_path / "few.db")

    def at_work(machines: int, seconds: range) -> list[tuple[str, str]]:
        for second in seconds:
            values = Sample("host", {"cpu_utilization_ratio": 0.31})
            store.write([Batch(f"m{n}", START + second * SECOND, (values,)) for n in range(machines)])
            runner.catch_up(START + second * SECOND, STOP)
        return [(row["machine"], row["code"]) for row in store.read("event").to_pylist()]

    runner = Runner(store, Config(history_seconds=0.0), START)
    lonely = [(f"m{n}", "no_peers") for n in range(3)]
    assert at_work(3, range(1, 150)) == lonely
    said = read_fleet_status(store, START + 149 * SECOND, 30 * SECOND).without_peers
    assert said == {f"m{n}": "fewer than 4 of its kind by host" for n in range(3)}
    runner = Runner(store, Config(history_seconds=0.0), START + 149 * SECOND)
    assert at_work(3, range(150, 240)) == lonely
    runner._repeated -= AGAIN_NS
    assert at_work(3, range(240, 310)) == 2 * lonely
    assert at_work(4, range(310, 380)) == 2 * lonely + [(f"m{n}", "peers") for n in range(3)]
    assert read_fleet_status(store, START + 379 * SECOND, 30 * SECOND).without_peers == {}
    store.close()


def clocks(store: Embedded, seconds: range, slow: str, machines: Iterable[int]) -> None:
    """A reading a second of these machines' GPU clocks, of which one is slow."""
    generator = np.random.default_rng(29)
    for second in seconds:
        at, clock = START + second * SECOND, 1.7e9 + generator.normal(0, 4e6, 8)
        clock[int(slow[1:])] *= 0.66
        store.write([Batch(f"m{n}", at, (Sample("gpu", {"gpu": "0", "sm_clock_hertz": clock[n]}),)) for n in machines])


def test_a_pause_of_the_whole_fleet_is_no_recovery(store: Shaky) -> None:
    """An open verdict stays while nothing is read and when readings come back; it ends when the machine is well."""
    runner = Runner(store, Config(), START + 230 * SECOND)
    assert [verdict.level for verdict in runner.catch_up(START + 360 * SECOND, STOP)] == ["crit"]
    clocks(store, range(700, 860), "m3", range(8))
    for second in range(361, 860):
        assert runner.catch_up(START + second * SECOND, STOP) == [], second
    clocks(store, range(860, 960), "m3", (0, 1, 2, 4, 5, 6))
    for second in range(860, 960):
        verdicts = runner.catch_up(START + second * SECOND, STOP)
        assert [verdict for verdict in verdicts if verdict.level == "ok"] == [], second


def test_who_is_not_read_is_a_blind_spot_only_where_no_verdict_names_it(store: Shaky) -> None:
    """One silent machine of eight gets a verdict; three or all of them are blind spots without a verdict."""
    runner = Runner(store, Config(), START + 230 * SECOND)
    runner.catch_up(START + 359 * SECOND, STOP)
    clocks(store, range(361, 520), "m3", range(7))
    runner.catch_up(START + 515 * SECOND, STOP)
    assert runner.blind_spots(START + 510 * SECOND, 60.0) == {}
    clocks(store, range(520, 620), "m3", range(5))
    named = runner.catch_up(START + 615 * SECOND, STOP)
    lost = runner.blind_spots(START + 615 * SECOND, 60.0)
    assert (sorted(lost), lost["m7"], lost["m6"]) == (
        ["m5", "m6", "m7"],
        START + 360 * SECOND,
        START + 519 * SECOND,
    ), named
    assert len(runner.blind_spots(START + 676 * SECOND, 60.0)) == 8
    runner.tick = 20 * SECOND  # agents that read seldom are not silent because of that
    assert runner.blind_spots(START + 676 * SECOND, 60.0).keys() == {"m5", "m6", "m7"}


def test_a_silent_machine_is_well_again_only_when_it_is_read(store: Shaky) -> None:
    """Peers that fall silent too and come back end no incident of a silent machine; its own first reading does."""
    runner = Runner(store, Config(), START + 230 * SECOND)
    runner.catch_up(START + 359 * SECOND, STOP)
    clocks(store, range(361, 580), "m3", range(7))
    runner.catch_up(START + 579 * SECOND, STOP)
    assert said(store)[-1] == ("m7", "crit")
    clocks(store, range(700, 800), "m3", range(7))
    clocks(store, range(800, 805), "m3", range(8))
    for second in range(580, 800):
        assert runner.catch_up(START + second * SECOND, STOP) == [], second
    back = [verdict for second in range(800, 804) for verdict in runner.catch_up(START + second * SECOND, STOP)]
    assert [(verdict.machine, verdict.level, verdict.time) for verdict in back] == [("m7", "ok", START + 800 * SECOND)]


class Gone(Embedded):
    """A store that cannot be read while `shut`."""

    shut = False

    def read(self, table: str, after: int = 0, until: int = LATEST, columns: Collection[str] | None = None) -> pa.Table:
        """Read, or fail as a server does that is gone."""
        if self.shut:
            raise StoreError("the server cannot be reached")
        return super().read(table, after, until, columns)


def test_a_detector_without_its_store_or_its_agents_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An outage of the store and then of all readings reach a sink as one incident of Peerwatch that goes on.

    The watchdog is fed all the while.
    """
    place, ear, stop = Gone(tmp_path / "s.db"), Ear(), threading.Event()
    turns: list[str] = []
    dispatcher = AlertDispatcher({"ear": ear}, tmp_path / "alerts", blind_s=4.0)

    def feed(until: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not until():
            assert time.monotonic() < deadline, ear.heard
            clock = Sample("gpu", {"gpu": "0", "sm_clock_hertz": 1.7e9})
            place.write([Batch(f"m{n}", time.time_ns(), (clock,)) for n in range(5)])
            time.sleep(0.2)

    at = time.time_ns()
    place.write([Batch(f"m{n}", at, (Sample("gpu", {"gpu": "0", "sm_clock_hertz": 1.7e9}),)) for n in range(5)])
    thread = threading.Thread(
        target=runner.run,
        args=(place, Config(judging_delay_seconds=0.5), dispatcher, stop),
        kwargs={"alive": turns.append},
    )
    thread.start()
    begun = time.monotonic()
    feed(lambda: time.monotonic() > begun + 3)
    place.shut = True
    feed(lambda: len(ear.heard) >= 1)
    place.shut = False
    feed(lambda: len(ear.heard) >= 2)
    ear.wait(3)  # nothing is fed any more
    stop.set()
    thread.join()
    dispatcher.close()
    place.close()
    store, back, silent = (alert.headline for alert in ear.heard)
    blind = r"Peerwatch is blind: {} for \d+ s"  # how long, to the second, is the machine's load
    assert re.match(blind.format("the store cannot be used") + r" \(the server cannot be reached\)", store)
    assert back.startswith("Peerwatch receives readings again since")
    assert re.match(blind.format("no readings of 5 machines"), silent)
    assert {"judging 5 machines, 0 incidents open", "the store cannot be used, trying again"} <= set(turns)
    assert sum("the store cannot be used" in record.getMessage() for record in caplog.records) == 1
    assert len({alert.incident for alert in ear.heard}) == 1
