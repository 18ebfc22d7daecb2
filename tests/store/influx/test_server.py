"""Addresses, configuration, secrets; and what real servers answer."""

from __future__ import annotations

import json
import logging
import signal
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from store.influx.config import Address, InfluxConfig, address_of
from store.influx.influxql import Influx
from store.influx.server import Server
from store.line_protocol.write import pack
from store.nats.config import NatsConfig
from store.open import open_sink
from store.schema.contract import StoreError
from store.schema.sample import Batch, Sample
from tests import servers
from tests.servers import ServerProcess
from tests.store.conftest import influx, rows
from tests.wires import Scripted

NOW = time.time_ns()


def gpu(machine: str, watts: float, time: int = NOW) -> Batch:
    """A reading of one GPU."""
    return Batch(machine, time, (Sample("gpu", {"gpu": "0", "power_watts": watts, "ecc_corrected_total": 41}),))


@pytest.mark.parametrize(
    ("place", "address"),
    [
        ("http://influx:8086/metrics", Address("http://influx:8086", "metrics")),
        ("https://influx.example/proxy/v1/gpu%20fleet/", Address("https://influx.example/proxy/v1", "gpu fleet")),
        ("http://[::1]:8086/m", Address("http://[::1]:8086", "m")),
    ],
)
def test_addresses(place: str, address: Address) -> None:
    """The last word of an address is the database, the rest the server."""
    assert address_of(place) == address


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("http://influx:8086", "names no database"),
        ("http://influx:8086/", "names no database"),
        ("http:///metrics", "names no database"),
        ("http://influx:port/metrics", "cannot be understood"),
        ("http://influx:8086/m?token=s3cr3t", "influxdb.token_file"),
        ("http://me:s3cr3t@influx:8086/m", "influxdb.token_file"),
    ],
)
def test_wrong_addresses(place: str, said: str) -> None:
    """An address that cannot be meant is one line with its mend, which repeats no secret."""
    with pytest.raises(StoreError, match=said) as caught:
        address_of(place)
    assert "s3cr3t" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"post_seconds": 0.0}, r">= 0.1 - at `\$.post_seconds`"),
        ({"spool_bytes": 5}, r">= 100000 - at `\$.spool_bytes`"),
        ({"spool_seconds": float("nan")}, r">= 1.0 - at `\$.spool_seconds`"),
        ({"dialect": "v4"}, "influxdb.dialect is 'v4': known are auto, v1, v2"),
        ({"reading": "sql"}, "influxdb.reading is 'sql'"),
    ],
)
def test_wrong_configurations(options: dict[str, object], said: str) -> None:
    """An invalid value is refused with its key and its bound."""
    with pytest.raises(ValueError, match=said):
        msgspec.convert(options, InfluxConfig)


def test_where_the_token_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file that is named, else systemd's credential, else the environment, else none."""
    monkeypatch.delenv("PEERWATCH_TOKEN", raising=False)
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)
    assert InfluxConfig().token() == ""
    monkeypatch.setenv("PEERWATCH_TOKEN", "from-environment")
    assert InfluxConfig().token() == "from-environment"
    (tmp_path / "influxdb-token").write_text("from-credential\n")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert InfluxConfig().token() == "from-credential"
    (tmp_path / "own").write_text("from-file\nsecond line\n")
    assert InfluxConfig(token_file=str(tmp_path / "own")).token() == "from-file"
    with pytest.raises(StoreError, match=r"influxdb\.token_file .*absent cannot be read: No such file"):
        InfluxConfig(token_file=str(tmp_path / "absent")).token()


@pytest.mark.parametrize(
    ("place", "said"),
    [
        (
            "http://influx.invalid:8086/m",
            "the token for http://influx.invalid:8086 can be read on its way: use https://",
        ),
        (
            "nats://a.invalid:4222,b.invalid:4222/m",
            "the token for nats://a.invalid:4222 can be read on its way: use tls://",
        ),
        ("https://influx.invalid:8086/m", ""),
        ("tls://a.invalid:4222/m", ""),
        ("http://127.0.0.1:1/m", ""),
        ("http://[::1]:1/m", ""),
        ("nats://localhost:1/m", ""),
    ],
)
def test_a_token_in_the_clear_is_said(
    place: str, said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Agents warn of a token that leaves the machine without encryption; the token is not in the line."""
    monkeypatch.setenv("PEERWATCH_TOKEN", "s3cr3t")
    (tmp_path / "token").write_text("s3cr3t")
    options = InfluxConfig(spool_folder=str(tmp_path / "spool"))
    open_sink(place, options, NatsConfig(token_file=str(tmp_path / "token"))).close()
    assert [line for line in caplog.messages if "on its way" in line] == [said] * bool(said)
    assert "s3cr3t" not in caplog.text


def test_without_a_token_nothing_can_be_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An address without encryption is no warning where there is no token."""
    open_sink("http://influx.invalid:8086/m", InfluxConfig(spool_folder=str(tmp_path / "spool"))).close()
    assert "on its way" not in caplog.text


def test_a_real_server_is_asked_for_its_dialect(
    influx_server: servers.ServerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    """InfluxDB 1 says its version, so the first dialect is spoken; a database that is not there is begun, once."""
    caplog.set_level(logging.INFO)
    store = influx(f'{influx_server.url}/new "base', keep_days=3)
    store.write([gpu("m1", 301.5)])
    store.write([gpu("m2", 302.5)])
    assert [row["power_watts"] for row in rows(store, "gpu")] == [301.5, 302.5]
    assert [record.getMessage() for record in caplog.records if "is new" in record.getMessage()] == [
        f'{influx_server.url}/new "base is new; it keeps rows for 3 days'
    ]
    assert b'new ""base' in influx_server.ask("SHOW DATABASES") or b'new "base' in influx_server.ask("SHOW DATABASES")
    assert store.server.dialect() == "v1"
    store.close()


def test_what_the_server_refuses_is_said(influx_server: servers.ServerProcess, database: Callable[[], str]) -> None:
    """What a real server refuses comes as one line with its own words."""
    store = influx(database())
    store.write([Batch("m1", NOW, (Sample("host", {"processes_running": 2.5}),))])
    answer = store.server.write(pack([b'host,machine=m1 processes_running="many" 7']))
    assert answer.status == 400
    assert "field type conflict" in answer.reason
    with pytest.raises(StoreError, match="answers 400: error parsing query"):
        list(store._ask("SELECT nonsense FROM"))
    store.close()
    influx_server.ask("CREATE DATABASE short WITH DURATION 1d")
    short = influx(f"{influx_server.url}/short")
    with pytest.raises(StoreError, match=r"keeps rows for a shorter time .*points beyond retention policy dropped=1"):
        short.write([gpu("m1", 300.5, 10**9)])
    influx_server.ask("DROP DATABASE short")
    short.close()


def test_a_database_that_is_not_there(influx_server: servers.ServerProcess) -> None:
    """Reading a database that does not exist is an error that names it, not an empty store."""
    store = influx(f"{influx_server.url}/nobodys")
    with pytest.raises(StoreError, match="database not found: nobodys"):
        store.read("gpu")
    store.close()


def test_only_tables_of_readings(database: Callable[[], str]) -> None:
    """Other programs' measurements in the same database, and alerts, are no tables of ours; foreign readings are."""
    store = influx(database())
    store.write([gpu("m1", 311.5)])
    lines = [
        b'statuses,_level=crit,machine=m1 _message="x",score=4 9',
        b"cpu,host=h1,cpu=cpu0 usage_idle=97 9",
        b'rack,machine=m1,row=a temperature=21.5,doors=2i,open=true,note="warm" 12',
        b"rack,machine=m2 temperature=23.5 13",
        b"rack temperature=99 14",
    ]
    assert store.server.write(pack(lines)).good
    assert store.tables() == ("gpu", "rack")
    assert rows(store, "rack") == [
        {"time": 12, "machine": "m1", "row": "a", "temperature": 21.5, "doors": 2, "open": 1, "note": "warm"},
        {"time": 13, "machine": "m2", "temperature": 23.5},
    ]
    assert rows(store, "rack", 12) == [{"time": 13, "machine": "m2", "temperature": 23.5}]
    assert store.read("rack", columns=("doors",)).column_names == ["time", "machine", "doors"]
    assert store.span() == (12, NOW)
    store.close()


def test_rows_without_a_chosen_column_are_there(database: Callable[[], str]) -> None:
    """Where only some columns are asked for, a row that has none of them is a row all the same."""
    store = influx(database())
    store.write([Batch("m1", n, (Sample("host", {"processes_running": n / 4} if n % 2 else {}),)) for n in range(1, 6)])
    assert store.read("host", columns=("processes_running",)).column("processes_running").to_pylist() == [
        0.25,
        None,
        0.75,
        None,
        1.25,
    ]
    assert store.read("host", columns=()).column("time").to_pylist() == [1, 2, 3, 4, 5]
    store.close()


def test_written_again_is_written_once(database: Callable[[], str]) -> None:
    """A write may be repeated if its answer was lost: no row is there twice, and rows of one moment stay apart."""
    store = influx(database())
    event = {"source": "kernel_log", "code": "xid:79"}
    batch = Batch("m1", 9, tuple(Sample("event", {**event, "device": f"gpu:{n}"}) for n in (4, 6)))
    for _ in range(3):
        store.write([batch])
    assert [row["device"] for row in rows(store, "event")] == ["gpu:4", "gpu:6"]
    store.close()


def test_another_schema_is_named(database: Callable[[], str], caplog: pytest.LogCaptureFixture) -> None:
    """Reading what another version has written warns once, and works: any agent may write that row."""
    store = influx(place := database())
    store.write([Batch("m1", 4, (Sample("host", {"cpu_utilization_ratio": 0.31}),))])
    assert (store.tables(), store.read("host").num_rows, caplog.messages) == (("host",), 1, [])
    store.server.write(pack([b"peerwatch schema=3i"]))
    other = influx(place)
    assert [other.read("host").num_rows for _ in range(2)] == [1, 1]
    assert [one for one in caplog.messages if "newer" in one] == [
        f"{place} was written by a newer Peerwatch (schema 3, here 1): upgrade it here"
    ]
    other.close()
    store.close()


def test_series_stay_bounded_in_a_real_server(
    database: Callable[[], str], influx_server: servers.ServerProcess
) -> None:
    """New processes, communicators, ranks and tasks begin no series: the server counts them, one for the schema."""
    store = influx(database())

    def fill(rounds: range) -> bytes:
        for n in rounds:
            nccl = {"gpu": "0", "slot": "1", "comm": f"{n:016x}", "rank": n, "pid": 1000 + n}
            verdict = {"task": f"run-{n}", "device": f"gpu:{n}", "message": f"m1 {n}"}
            probe = {"library": f"/lib/{n}", "path": f"/proc/{n}", "state": "on"}
            samples = (Sample("nccl", nccl), Sample("verdict", verdict), Sample("probe", probe))
            store.write([Batch("m1", n, (*samples, Sample("task", {"task": f"run-{n}"})))])
        return influx_server.ask("SHOW SERIES", store.server.address.database)

    assert fill(range(1, 3)).count(b"\n") == 1 + 4 + 1
    assert fill(range(3, 60)).count(b"\n") == 1 + 4 + 1
    assert store.read("verdict").num_rows == 59
    store.close()


def test_both_halves_of_the_machines(database: Callable[[], str]) -> None:
    """The halves that are asked for at once hold every machine, whatever its name ends with, in a fixed order."""
    store = influx(database())
    names = ["m1", "m2", "m13", "m40", "spare", "7", "ü9"]
    for second in (2, 1):
        for at, name in enumerate(names):
            values = {"cpu_utilization_ratio": (second * 10 + at) / 64, **({"novel": 5} if name == "m40" else {})}
            store.write([Batch(name, second * 10**9, (Sample("host", values),))])
    found = [(row["time"], row["machine"], row["cpu_utilization_ratio"]) for row in rows(store, "host")]
    order = ["7", "m1", "m13", "ü9", "m2", "m40", "spare"]
    wanted = [(n * 10**9, name, (n * 10 + names.index(name)) / 64) for n in (1, 2) for name in order]
    assert found == wanted
    assert [row["machine"] for row in rows(store, "host") if "novel" in row] == ["m40", "m40"]
    store.close()


def test_a_server_with_passwords(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A real server that asks who is there: user:password lets in; a wrong one is explained, and never repeated."""
    real = servers.influxd(tmp_path, auth=True)
    real.start()
    real.ask("CREATE USER boss WITH PASSWORD 's3cr3t-right' WITH ALL PRIVILEGES")
    file = tmp_path / "token"
    file.write_text("boss:s3cr3t-right\n")
    store = influx(f"{real.url}/metrics", token_file=str(file))
    store.write([gpu("m1", 307.5)])
    assert [row["power_watts"] for row in rows(store, "gpu")] == [307.5]
    store.close()
    for word in ("boss:s3cr3t-wrong", "s3cr3t-wrong", ""):
        file.write_text(word)
        wrong = influx(f"{real.url}/metrics", token_file=str(file))
        with pytest.raises(StoreError, match=r"refuses this token \(401: .*influxdb.token_file") as caught:
            wrong.write([gpu("m1", 308.5)])
        with pytest.raises(StoreError, match=r"refuses this token \(401"):
            wrong.read("gpu")
        assert "s3cr3t" not in str(caught.value) + caplog.text
        wrong.close()
    real.kill(signal.SIGTERM)


def test_the_second_dialect_on_a_real_server(tmp_path: Path) -> None:
    """VictoriaMetrics takes what influxdb-client sends to /api/v2/write; numbers come back from it, texts it drops."""
    real = servers.victoria(tmp_path)
    real.start()
    store = influx(f"{real.url}/metrics", dialect="v2", org="us")
    store.write([gpu("m1", 311.25), gpu("m2", 312.75)])
    found: dict[str, float] = {}
    deadline = time.monotonic() + 60
    while len(found) < 2 and time.monotonic() < deadline:
        urllib.request.urlopen(f"{real.url}/internal/force_flush").close()  # noqa: S310 - loopback
        with urllib.request.urlopen(f"{real.url}/api/v1/export?match[]=gpu_power_watts") as answer:  # noqa: S310 - loopback
            series = [json.loads(line) for line in answer]
        found = {one["metric"]["machine"]: one["values"][0] for one in series}
    assert found == {"m1": 311.25, "m2": 312.75}
    store.close()
    real.kill(signal.SIGTERM)


@pytest.mark.parametrize("make", [servers.influxd, servers.victoria])
def test_since_when_a_server_runs(tmp_path: Path, make: Callable[[Path], ServerProcess]) -> None:
    """Two processes say two things, one says one; it is asked again only after a new connection."""
    real, line = make(tmp_path), b"host,machine=m1 value=1i %d" % NOW
    real.start()
    server = Server(address_of(f"{real.url}/metrics"), InfluxConfig())
    assert server.write(pack([line])).good
    first, connections = server.began(), server._server_start._begun
    assert first
    assert server.write(pack([line])).good
    assert (server.began(), server._server_start._begun) == (first, connections)
    real.kill()
    assert not server.write(pack([line])).good
    with pytest.raises(StoreError, match="does not answer"):
        server.began()
    time.sleep(1.0)  # VictoriaMetrics says it in seconds
    real.start()
    assert server.write(pack([line])).good
    assert server.began() not in ("", first)
    server.close()
    real.kill()


def test_an_answer_that_is_none(tmp_path: Path) -> None:
    """Something that is no InfluxDB at the address is said, not taken for an empty store."""
    script = Scripted()
    store = Influx(Server(address_of(f"{script.url}/metrics"), InfluxConfig()))
    with pytest.raises(StoreError):
        store.read("gpu")
    store.close()
    script.close()
