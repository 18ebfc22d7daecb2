"""Statuses on a real InfluxDB 1: what its notification rules would read there."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detector.alerts.alert import IncidentTracker, sample
from detector.alerts.sinks.influxdb import Influxdb, InfluxdbConfig, status_of
from detector.model.job import Job
from detector.model.verdict import Level, Verdict
from store.influx.check_statuses import CHECK_ID, FIELDS, TAGS, Status, Statuses, line_of, open_statuses
from store.line_protocol.write import pack, unpack
from store.schema.contract import StoreError
from tests.servers import ServerProcess
from tests.store.conftest import influx
from tests.wires import Scripted

NOW = 1_780_000_000_000_000_007


class Clock:
    """A clock that stands still."""

    def __call__(self) -> int:
        """Unix ns."""
        return NOW


JOB = Job(**{name: f"{name}-{place}" for place, name in enumerate(Job.__dataclass_fields__, 3)})


def verdict(time: int, level: Level, machine: str = "m 3,x", task: str = "t9") -> Verdict:
    """A verdict with all that line protocol could stumble over."""
    said = f'{machine} says "5 × 2"\\, in\ntwo lines'
    return Verdict(time, task, machine, "gpu:1", "peer", "gpu.power_watts", 2.25, time - 7, level, said, job=JOB)


def found(server: ServerProcess, place: str, query: str) -> list[dict[str, str]]:
    """The rows of an answer."""
    text = server.ask(query, place.rpartition("/")[2]).decode()
    return list(csv.DictReader(io.StringIO(text)))


def test_rows_have_the_form_that_rules_read(influx_server: ServerProcess, database: Callable[[], str]) -> None:
    """Through an incident only `_level` differs within a series; time is that of writing; a message is one line."""
    place = database()
    sink = Influxdb(InfluxdbConfig(), open_statuses(place), Clock())
    incidents = IncidentTracker()
    for at, level in ((20, "warn"), (31, "crit"), (45, "ok")):
        alert = incidents.record(verdict(at, level))  # type: ignore[arg-type]
        assert alert is not None
        assert sink.send(alert) == f"written to {place}"
    sink.heartbeat(["m4", "m 3,x"])
    rows = found(influx_server, place, 'SELECT * FROM "statuses" ORDER BY time')
    assert [(row["machine"], row["_level"], row["event"]) for row in rows] == [
        *(("m 3,x", level, event) for level, event in (("warn", "begun"), ("crit", "changed"), ("ok", "over"))),
        ("m4", "ok", "well"),
        ("m 3,x", "ok", "well"),
    ]
    assert [int(row["time"]) - NOW for row in rows] == [0, 1, 2, 3, 4]
    assert [row["_source_timestamp"] for row in rows[:3]] == ["20", "31", "45"]
    assert (rows[1]["_message"], rows[1]["score"]) == (verdict(31, "crit").message.replace("\n", " "), "2.25")
    assert {row["_check_id"] for row in rows} == {CHECK_ID}
    series = found(influx_server, place, 'SHOW SERIES FROM "statuses"')
    apart = {",".join(part for part in row["key"].split(",") if "_level" not in part) for row in series}
    assert (len(series), len(apart)) == (4, 2)


def test_tags_and_fields_are_those_that_are_named(influx_server: ServerProcess, database: Callable[[], str]) -> None:
    """Tags are bounded by machines and levels, whatever tasks and incidents come; all else is a field."""
    place = database()
    statuses = open_statuses(place)
    incidents = IncidentTracker()
    for n in range(40):
        alert = incidents.record(verdict(100 + n, "crit", f"m{n % 4}", f"task {n}"))
        assert alert is not None
        statuses.write([status_of(alert)], NOW + n)
    tags = {row["tagKey"] for row in found(influx_server, place, 'SHOW TAG KEYS FROM "statuses"')}
    fields = {row["fieldKey"] for row in found(influx_server, place, 'SHOW FIELD KEYS FROM "statuses"')}
    assert (tags, fields) == (set(TAGS), set(FIELDS))
    assert len(found(influx_server, place, 'SHOW SERIES FROM "statuses"')) == 4
    assert influx(place).tables() == ()


def test_no_two_rows_share_a_time(influx_server: ServerProcess, database: Callable[[], str]) -> None:
    """More rows than fit one post, and a clock that stands still or goes back, overwrite nothing."""
    place = database()
    statuses = open_statuses(place)
    rows = [Status("m1", "ok", "well", NOW, 0.5, {}) for _ in range(5003)]
    statuses.write(rows, NOW)
    statuses.write(rows[:9], NOW - 10**9)
    (count,) = found(influx_server, place, 'SELECT count("score") FROM "statuses"')
    assert count["count"] == "5012"


def test_a_machine_that_another_incident_holds_is_not_well() -> None:
    """The row of an end is at the level of what is still open; a test is at its own."""
    incidents = IncidentTracker()
    incidents.record(verdict(20, "crit", task="t1"))
    incidents.record(verdict(21, "warn", task="t2"))
    over = incidents.record(verdict(33, "ok", task="t2"))
    assert over is not None
    assert status_of(over).level == "crit"
    assert status_of(sample(NOW, 8)).level == "ok"


def test_a_test_alert_is_one_row(influx_server: ServerProcess, database: Callable[[], str]) -> None:
    """It says what it is, at the level ok, of a machine that there is not."""
    place = database()
    Influxdb(InfluxdbConfig(), open_statuses(place), Clock()).test(sample(NOW, 8))
    (row,) = found(influx_server, place, 'SELECT * FROM "statuses"')
    assert (row["machine"], row["_level"], row["event"]) == ("peerwatch-test", "ok", "test")


@given(machine=st.text(), message=st.text(), score=st.floats(), task=st.text())
def test_a_row_is_one_line(machine: str, message: str, score: float, task: str) -> None:
    """Whatever names and messages hold, a row is a single line, and its tags hold no line end."""
    lines = [line_of(Status(machine, "warn", message, NOW, score, {"task": task}), NOW + n) for n in (0, 1)]
    assert unpack(pack(lines)) == lines
    assert b"\n" not in lines[0].partition(b" _message=")[0]


def test_numbers_that_no_server_takes() -> None:
    """Infinities and times beyond 64 bits still make a line."""
    line = line_of(Status("m1", "crit", "x", 2**70, float("inf"), {"task": ""}), NOW)
    assert b'score=0.0,task=""' in line
    assert b"_source_timestamp=9223372036854775807i" in line


def test_a_server_that_refuses_is_an_error(tmp_path: Path) -> None:
    """What is not taken is said in one line without the token; a file is no place for statuses."""
    server = Scripted(lambda _: (401, '{"message": "unauthorized"}', {}))
    (tmp_path / "token").write_text("hush\n")
    with pytest.raises(StoreError, match=r"refuses this token \(401: unauthorized\)") as caught:
        _statuses(f"{server.url}/alerts", str(tmp_path / "token")).write([Status("m1", "ok", "x", 1, 2.0, {})], NOW)
    assert "hush" not in str(caught.value)
    assert server.asked[-1][1]["Authorization"] == "Token hush"
    server.close()
    with pytest.raises(StoreError, match=r"alerts\.influxdb\.store must name http://SERVER:8086/DATABASE"):
        open_statuses("/var/lib/x.db")


def _statuses(place: str, token_file: str) -> Statuses:
    from store.influx.config import InfluxConfig

    return open_statuses(place, InfluxConfig(token_file=token_file))
