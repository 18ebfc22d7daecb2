"""`peerwatch clear` and `peerwatch maintenance`: orders reach the store, whoever else writes to it."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.config import Settings, signing_key
from cli.main import app
from cli.orders import machines
from cli.watch import Runner
from detector.config import Config
from store.contract import StoreError
from store.embedded import Embedded
from store.sample import Batch, Sample
from store.signed import Signed, key_of
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


def test_orders_are_events(place: Path) -> None:
    """Each command writes one row of the table `event`, and says what will happen."""
    for words in (
        ("clear", "m01"),
        ("clear", "m02", "--device", "gpu:3", "--reason", "card swapped"),
        ("maintenance", "m03", "--for", "2h", "--reason", "new riser"),
        ("maintenance", "m03", "--end"),
    ):
        done = said(*words, "--store", place)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(words[1])
    assert orders(place) == [
        ("m01", "clear", None, None),
        ("m02", "clear", "gpu:3", "card swapped"),
        ("m03", "maintenance", None, "new riser"),
        ("m03", "maintenance_end", None, None),
    ]


def test_an_order_needs_the_key(place: Path) -> None:
    """Orders are signed with the key beside the store, which is begun; to a server's detector only with that one's."""
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


def test_who_is_in_maintenance(place: Path) -> None:
    """Alone the command lists the machines with their times and reasons; `status` shows them and is silent on them."""
    assert said("maintenance", "--store", place).stdout == "no machine is\n"
    before = time.time_ns()
    assert said("maintenance", "m02", "--for", "90m", "--reason", "fan", "--store", place).returncode == 0
    assert said("maintenance", "m01", "--store", place).returncode == 0
    first, second = said("maintenance", "--store", place).stdout.splitlines()
    assert first.startswith("m01 since ")
    assert first.endswith(", until it is ended")
    assert second.endswith(" UTC: fan")
    assert f"maintenance: {second}" in said("status", "--store", place).stdout.splitlines()
    found = json.loads(said("status", "--json", "--store", place).stdout)["maintenance"]
    assert [(row["machine"], row["reason"]) for row in found] == [("m01", ""), ("m02", "fan")]
    assert found[0]["until"] is None
    assert before + 5400 * SECOND <= found[1]["until"] <= time.time_ns() + 5400 * SECOND


def test_a_silent_machine_in_maintenance_is_no_warning(place: Path) -> None:
    """Who is worked on may be off: `status` stays ok."""
    store = Embedded(place)
    store.write([host("m00", time.time_ns() - 120 * SECOND, 0.7)])
    store.close()
    assert said("status", "--store", place).returncode == 1
    assert said("maintenance", "m00", "--store", place).returncode == 0
    assert said("status", "--store", place).returncode == 0


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (("clear", "m3"), "knows no machine m3: did you mean m03"),
        (("maintenance", "m9", "--for", "1h"), "knows no machine m9: did you mean m0"),
        (("maintenance", "m01", "--for", "soon"), "is no duration"),
        (("maintenance", "m01", "--end"), "m01 is in no maintenance"),
        (("clear", "m01", "--device", "3"), "'3' is no device"),
    ],
)
def test_what_cannot_be_meant_is_refused(place: Path, words: tuple[str, ...], cause: str) -> None:
    """One line with the cause, and nothing is written."""
    assert cause in one_line(said(*words, "--store", place), 1)
    assert orders(place) == []


@pytest.mark.parametrize("words", [("m01", "--for", "1h", "--end"), ("--end",), ("--reason", "why")])
def test_options_that_contradict_each_other(place: Path, words: tuple[str, ...]) -> None:
    """A wrong use is 2, as everywhere."""
    assert said("maintenance", *words, "--store", place).returncode == 2
    assert orders(place) == []


def test_places_that_take_no_orders(place: Path, tmp_path: Path) -> None:
    """An absent store and a finished recording: one line."""
    assert "is the agent running" in one_line(said("clear", "m01", "--store", tmp_path / "absent.db"), 1)
    assert not (tmp_path / "absent.db").exists()
    assert said("export", tmp_path / "rec", "--store", place).returncode == 0
    assert "takes no more readings" in one_line(said("clear", "m01", "--store", tmp_path / "rec"), 1)


def test_a_machine_that_died_long_ago_can_be_named(place: Path) -> None:
    """Of whom a verdict speaks is known, however long silent."""
    store = Embedded(place)
    store.write([verdict("m77", time.time_ns() - 86400 * SECOND, "crit")])
    assert machines(store, SECOND) == ["m01", "m02", "m03", "m77"]
    store.close()


def test_names_are_completed(place: Path) -> None:
    """The shell is given the machines that begin so."""
    asked = {"_PEERWATCH_COMPLETE": "complete_bash", "COMP_WORDS": "peerwatch clear m0", "COMP_CWORD": "2"}
    done = run("clear", PEERWATCH_STORE=str(place), **asked)
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
        done = [run("clear", "m01", "--reason", reason, "--store", place) for reason in reasons]
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


def test_a_detector_that_starts_anew_goes_on_with_what_was_said(tmp_path: Path) -> None:
    """A verdict of days ago is neither repeated nor dropped; a clear order ends it, be it given before the start."""
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


def test_a_detector_that_starts_anew_honours_a_running_maintenance(tmp_path: Path) -> None:
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
