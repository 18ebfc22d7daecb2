"""`peerwatch ack` and `peerwatch maintenance`: orders reach the store, whoever else writes to it."""

from __future__ import annotations

import json
import re
import subprocess
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli import time_format
from cli.config import Settings, signing_key
from cli.main import app
from cli.queries.names import machines
from detector.config import Config
from detector.service.runner import Runner
from store.schema.contract import StoreError
from store.schema.sample import Batch, Sample
from store.signed import Signed, key_of
from store.sqlite.embedded import Embedded
from tests.cli.conftest import SECOND, host, one_line, run, verdict


def said(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """`peerwatch WORDS` in this process, which is quicker."""
    done = CliRunner().invoke(app, [str(word) for word in words], prog_name="peerwatch")
    return subprocess.CompletedProcess(words, done.exit_code, done.stdout, done.stderr)


def orders(place: Path) -> list[tuple[str, str, str | None, str | None]]:
    """Machine, code, device and message of what the operator has ordered."""
    with closing(Embedded(place)) as store:
        rows = store.read("event").to_pylist()
    assert {(row["source"], row["severity"]) for row in rows} <= {("operator", "info")}
    return [(row["machine"], row["code"], row["device"], row["message"]) for row in rows]


def signed(place: Path) -> Signed:
    """The store as the detector opens it."""
    return Signed(Embedded(place), key_of(place.with_suffix(".key"), True))


@pytest.fixture
def faulty(place: Path) -> Path:
    """The same, where something is open on m02 since 80 s, and was on m01."""
    now = time.time_ns()
    with closing(signed(place)) as store:
        store.write([verdict("m01", now - 90 * SECOND, "warn"), verdict("m01", now - 85 * SECOND, "ok")])
        store.write([verdict("m02", now - 80 * SECOND, "crit")])
    return place


def test_orders_are_events(faulty: Path) -> None:
    """Each command writes one row of the table `event` a machine, and says what will happen."""
    for words, code in (
        (("ack", "m02", "--reason", "known"), "m02: acknowledged"),
        (("ack", "2"), "m02: acknowledged"),
        (("ack", "m01", "--mended"), "m01: closed"),
        (("ack", "m02", "--device", "gpu:0", "--mended", "--reason", "card swapped"), "m02 gpu:0: closed"),
        (("maintenance", "m0[13]", "m02", "--for", "2h", "--reason", "new riser"), "m01: in maintenance until "),
        (("maintenance", "m03", "--end"), "m03: maintenance ended"),
    ):
        done = said(*words, "--store", faulty)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(code)
    assert orders(faulty) == [
        ("m02", "ack", None, "known"),
        ("m02", "ack", None, None),
        ("m01", "clear", None, None),
        ("m02", "clear", "gpu:0", "card swapped"),
        *((f"m0{n}", "maintenance", None, "new riser") for n in (1, 2, 3)),
        ("m03", "maintenance_end", None, None),
    ]


def test_an_order_needs_the_key(place: Path) -> None:
    """Commands sign orders with the key beside the store; an order to a server needs the key of its detector."""
    key = place.with_suffix(".key")
    assert said("maintenance", "--store", place).returncode == 0
    assert not key.exists()
    assert said("clear", "m01", "--store", place).returncode == 0
    with closing(Embedded(place)) as store:
        assert Signed(store, key_of(key)).read("event").num_rows == 1
        assert Signed(store, bytes(40)).read("event").num_rows == 0
    settings = Settings(signing_key_file=str(place.with_name("other.key")))
    with pytest.raises(StoreError, match=r"other\.key cannot be read.*signing_key_file"):
        signing_key("http://127.0.0.1:9/peerwatch", settings, False)


def test_the_old_name_says_so(place: Path) -> None:
    """`clear` still works and names its replacement."""
    done = said("clear", "m01", "--reason", "swapped", "--store", place)
    assert done.returncode == 0
    assert "peerwatch: clear is deprecated" in done.stderr
    assert orders(place) == [("m01", "clear", None, "swapped")]


def test_an_acknowledgement_is_seen(faulty: Path) -> None:
    """`status` and `show` name operator and reason, also in JSON; the verdict stays open, a worse one is news."""
    start = time.monotonic()
    assert said("ack", "m02", "--reason", "waits for a card", "--store", faulty).returncode == 0
    done = run("status", "--store", faulty)
    elapsed = time.monotonic() - start
    assert done.returncode == 2
    age = re.search(r"acknowledged (\d+) s ago: waits for a card\)", done.stdout)
    assert age
    assert int(age[1]) <= round(elapsed)
    assert "the operator: acknowledged: waits for a card" in run("show", "m02", "--store", faulty).stdout
    found = json.loads(said("status", "--json", "--store", faulty).stdout)["verdicts"]
    assert [one["acknowledged"]["reason"] for one in found] == ["waits for a card"]
    with closing(signed(faulty)) as store:
        store.write([verdict("m02", time.time_ns(), "crit")])
    found = json.loads(said("status", "--json", "--store", faulty).stdout)["verdicts"]
    assert [one["acknowledged"] for one in found] == [None]


def test_the_reason_of_an_end_is_seen(faulty: Path) -> None:
    """The time line of a verdict ends with the words of the operator who closed it."""
    with closing(signed(faulty)) as store:
        row = verdict("m02", time.time_ns() - 20 * SECOND, "ok").samples[0]
        closed = {**row.values, "message": "m02 was cleared by the operator: card swapped"}
        action = {"source": "operator", "code": "clear", "severity": "info"}
        store.write([Batch("m02", time.time_ns() - 21 * SECOND, (Sample("event", action),))])
        store.write([Batch("m02", time.time_ns() - 20 * SECOND, (Sample("verdict", closed),))])
    assert (
        "closed by the operator: m02 was cleared by the operator: card swapped"
        in run("show", "m02", "--store", faulty).stdout
    )


def test_who_is_in_maintenance(place: Path) -> None:
    """The command without arguments lists machines, times and reasons; `status` shows them and gives no warning."""
    assert said("maintenance", "--store", place).stdout == "no machine is in maintenance\n"
    before = time.time_ns()
    assert said("maintenance", "m02", "--for", "90m", "--reason", "fan", "--store", place).returncode == 0
    assert said("maintenance", "m01", "--store", place).returncode == 0
    first, second = said("maintenance", "--store", place).stdout.splitlines()
    assert first.startswith("m01 since ")
    assert first.endswith(", without end")
    assert second.endswith(" UTC: fan")
    assert f"maintenance: {second}" in said("status", "--store", place).stdout.splitlines()
    found = json.loads(said("status", "--json", "--store", place).stdout)["maintenance"]
    assert [(row["machine"], row["reason"]) for row in found] == [("m01", ""), ("m02", "fan")]
    assert found[0]["until"] is None
    assert before + 5400 * SECOND <= found[1]["until"] <= time.time_ns() + 5400 * SECOND


def test_maintenance_that_comes_again(place: Path) -> None:
    """Planned maintenance is listed, begins at its time, comes again as often as ordered, and can be ended."""
    begin = time_format.shown(time.time_ns() + 7200 * SECOND).replace(" ", "T")
    words = ("--from", begin, "--for", "30m", "--every", "1d", "--times", "5", "--reason", "backup")
    assert said("maintenance", "m0*", *words, "--store", place).returncode == 0
    listed = said("maintenance", "--store", place).stdout.splitlines()
    assert [line.split()[:3] for line in listed] == [[f"m0{n}", "later:", "from"] for n in (1, 2, 3)]
    assert listed[0].endswith("UTC, every 24 h, 5 times: backup")
    assert json.loads(said("status", "--json", "--store", place).stdout)["maintenance"] == []
    assert said("maintenance", "m02", "--end", "--store", place).returncode == 0
    assert [line[:3] for line in said("maintenance", "--store", place).stdout.splitlines()] == ["m01", "m03"]


def test_a_silent_machine_in_maintenance_is_no_warning(place: Path) -> None:
    """A silent machine in maintenance leaves `status` at ok."""
    store = Embedded(place)
    store.write([host("m00", time.time_ns() - 120 * SECOND, 0.7)])
    store.close()
    assert said("status", "--store", place).returncode == 1
    assert said("maintenance", "m00", "--store", place).returncode == 0
    assert said("status", "--store", place).returncode == 0


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (("ack", "m3"), "has no machine m3: did you mean m03"),
        (("ack", "nosuch"), "has no machine nosuch: it has m01, m02, m03"),
        (("ack", "m03"), "m03 has no open incident; machines with open incidents: m02"),
        (("ack", "1"), "verdict 1 on m01 was closed at"),
        (("ack", "m02", "--device", "gpu:9"), "m02 has no device gpu:9: did you mean gpu:0?"),
        (("ack", "m02", "--device", "3"), "m02 has no device 3: it has gpu:0"),
        (("maintenance", "x*", "--for", "1h"), "has no machine x*: it has m01"),
        (("maintenance", "m01", "--for", "soon"), "is not a duration"),
        (("maintenance", "m01", "--end"), "m01: not in maintenance"),
        (("maintenance", "m01", "--for", "2d", "--every", "1d"), "is not shorter than --every 1d"),
        (("maintenance", "m01", "--for", "1h", "--every", "7w", "--times", "300"), "more than a year from now"),
        (("maintenance", "m01", "--for", "1h", "--from", "2020-01-01"), "2020-01-01 would be over"),
    ],
)
def test_what_cannot_be_meant_is_refused(faulty: Path, words: tuple[str, ...], cause: str) -> None:
    """The command says the cause in one line and writes nothing."""
    assert cause in one_line(said(*words, "--store", faulty), 1)
    assert orders(faulty) == []


@pytest.mark.parametrize(
    "words",
    [("m01", "--for", "1h", "--end"), ("--end",), ("--reason", "why"), ("m01", "--every", "1d"), ("--every", "1d")],
)
def test_options_that_contradict_each_other(place: Path, words: tuple[str, ...]) -> None:
    """A wrong use gives exit code 2, as everywhere."""
    assert said("maintenance", *words, "--store", place).returncode == 2
    assert orders(place) == []


def test_places_that_take_no_orders(place: Path, tmp_path: Path) -> None:
    """An absent store and a finished recording give one line each."""
    assert "is the agent running" in one_line(said("ack", "m01", "--store", tmp_path / "absent.db"), 1)
    assert not (tmp_path / "absent.db").exists()
    assert said("export", tmp_path / "rec", "--store", place).returncode == 0
    words = ("maintenance", "m01", "--store", tmp_path / "rec")
    assert "is read-only" in one_line(said(*words), 1)
    assert not (tmp_path / "rec.key").exists()


def test_a_machine_that_died_long_ago_can_be_named(place: Path) -> None:
    """A machine with a verdict is known, however long it is silent."""
    store = Embedded(place)
    store.write([verdict("m77", time.time_ns() - 86400 * SECOND, "crit")])
    assert machines(store, SECOND) == ["m01", "m02", "m03", "m77"]
    store.close()


def test_names_are_completed(place: Path) -> None:
    """The shell completes the names of machines."""
    asked = {"_PEERWATCH_COMPLETE": "complete_bash", "COMP_WORDS": "peerwatch ack m0", "COMP_CWORD": "2"}
    done = run("ack", PEERWATCH_STORE=str(place), **asked)
    assert done.stdout.split() == ["m01", "m02", "m03"]


def test_no_order_is_lost_while_an_agent_writes(place: Path) -> None:
    """Another process writes without pause; every order arrives, and so does every batch."""
    stop, written = threading.Event(), []

    def agent() -> None:
        with closing(Embedded(place)) as store:
            while not stop.is_set():
                now = time.time_ns()
                store.write([host(f"m{n:02}", now, 0.5) for n in range(40)])
                written.append(now)

    writer = threading.Thread(target=agent)
    writer.start()
    try:
        reasons = [f"order {n}" for n in range(5)]
        done = [run("maintenance", "m01", "--reason", reason, "--store", place) for reason in reasons]
    finally:
        stop.set()
        writer.join(60)
    assert [one.returncode for one in done] == [0] * 5, done[0].stderr
    assert [message for *_, message in orders(place)] == reasons
    with closing(Embedded(place)) as store:
        times = set(store.read("host", columns=()).column("time").to_pylist())
    assert set(written) <= times


def lost(at: int) -> Batch:
    """A fact that lasts."""
    values = {"source": "kernel_log", "code": "xid:79", "device": "gpu:0", "severity": "crit", "message": "fell off"}
    return Batch("m02", at, (Sample("event", values),))


def test_a_new_detector_goes_on_with_what_was_said(tmp_path: Path) -> None:
    """A new detector neither repeats nor drops a verdict of days ago; a clear order of before the start ends it."""
    path, now = tmp_path / "s.db", time.time_ns() // SECOND * SECOND
    two_days, stop = 2 * 86400 * SECOND, threading.Event()
    with closing(Embedded(path)) as store:
        store.write([host(f"m{n:02}", now - back * SECOND, 0.3) for back in range(400) for n in range(5)])
        store.write([host(f"m{n:02}", now - two_days - back * SECOND, 0.3) for back in range(60) for n in range(5)])
        store.write([lost(now - two_days - 30 * SECOND)])
        first = Runner(store, Config(), now - two_days).catch_up(now - two_days, stop)
        assert [(v.machine, v.level) for v in first] == [("m02", "crit")]
        assert Runner(store, Config(), now).catch_up(now, stop) == []
        order = Sample("event", {"source": "operator", "code": "clear", "severity": "info"})
        store.write([Batch("m02", now - 20 * SECOND, (order,))])
        (over,) = Runner(store, Config(), now).catch_up(now, stop)
        assert (over.machine, over.level, over.metric) == ("m02", "ok", "event.xid:79")
        assert Runner(store, Config(), now).catch_up(now, stop) == []


def test_a_new_detector_honours_a_running_maintenance(tmp_path: Path) -> None:
    """An order that is older than the history which a detector reads still holds."""
    path, now, stop = tmp_path / "s.db", time.time_ns() // SECOND * SECOND, threading.Event()
    with closing(Embedded(path)) as store:
        store.write([host(f"m{n:02}", now - back * SECOND, 0.3) for back in range(400) for n in range(5)])
        store.write([lost(now - 30 * SECOND)])
        values = {"source": "operator", "code": "maintenance", "severity": "info"}
        order = {**values, "until": now + 3600 * SECOND}
        store.write([Batch("m02", now - 7200 * SECOND, (Sample("event", order),))])
        assert Runner(store, Config(), now).catch_up(now, stop) == []
        store.write([Batch("m02", now - 60 * SECOND, (Sample("event", {**values, "code": "maintenance_end"}),))])
        assert [v.level for v in Runner(store, Config(), now).catch_up(now, stop)] == ["crit"]


def test_orders_are_no_readings(tmp_path: Path) -> None:
    """Of a fleet that has been silent for days each machine is known, also after the first order of the day."""
    place, long_ago = tmp_path / "silent.db", time.time_ns() - 3 * 86_400 * SECOND
    with closing(Embedded(place)) as store:
        store.write([host(name, long_ago, 0.31) for name in ("m04", "m05")])
    for machine in ("m05", "m04"):
        assert said("maintenance", machine, "--for", "17m", "--store", place).returncode == 0
    refused = said("maintenance", "m06", "--for", "17m", "--store", place)
    assert (refused.returncode, "did you mean m0" in refused.stderr) == (1, True)
