"""`peerwatch writer`: killed and started again, it leaves each reading in the store once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from cli.commands.fleet.doctor import _store
from cli.config import Settings, read_settings
from cli.queries.delivery_health import Finding, writers
from store.line_protocol.write import lines_of, pack
from store.nats.config import NatsConfig, stream_of
from store.nats.stream import Stream
from store.sqlite.embedded import Embedded
from tests import servers
from tests.cli.conftest import ROOT, SECOND, host, one_line, process, run

NATS = "[nats]\nkeep_bytes = 10000000\nsettle_seconds = 1.0\n"


def started(config: Path) -> subprocess.Popen[bytes]:
    """A writer in a process of its own."""
    words = ["writer", "--config", str(config)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, "-m", "cli.main", *words], env=env, stderr=subprocess.DEVNULL)


def found(store: Embedded, least: int) -> list[int]:
    """The times of the readings, as soon as there are so many."""
    deadline = time.monotonic() + 60
    while (rows := store.read("host")).num_rows < least and time.monotonic() < deadline:
        time.sleep(0.02)
    times: list[int] = rows.column("time").to_pylist()
    return [time // SECOND for time in times]


def publish(agent: Stream, body: bytes) -> None:
    """Publish; a connection that broke with its server may be noticed by the first attempt only."""
    deadline = time.monotonic() + 60
    while not agent.write(body).good:
        assert time.monotonic() < deadline


def becomes(state: str, settings: Settings, place: str) -> Finding:
    """What doctor says of the only writer, as soon as it is in this state."""
    deadline = time.monotonic() + 60
    while (one := next(writers(settings, place))).state != state:
        assert time.monotonic() < deadline, one
    return one


def test_killed_and_started_again(tmp_path: Path) -> None:
    """kill -9 of the writer and of the server between readings loses none and doubles none."""
    server = servers.nats(tmp_path)
    server.start()
    place, config, store = f"{server.url}/s", tmp_path / "p.toml", Embedded(tmp_path / "a.db")
    config.write_text(f'store = "{place}"\n[writer]\nstore = "{tmp_path / "a.db"}"\nname = "w"\n{NATS}')
    settings = read_settings(config)
    agent = Stream(stream_of(place), NatsConfig(keep_bytes=10**7))
    assert (_store(place, settings).state, agent.message_count()) == ("off", 0)
    assert [one.why for one in writers(settings, place)] == [f"no writer reads {place}"]
    for first in (1, 31):
        writer = started(config)
        for number in range(first, first + 30):
            publish(agent, pack(lines_of([host("m1", number * SECOND, number / 64)])))
            if number == first + 9:
                found(store, first + 9)
        server.kill()
        writer.send_signal(signal.SIGKILL if first == 1 else signal.SIGTERM)
        assert writer.wait(60) == (-signal.SIGKILL if first == 1 else 0)
        server.start()
    last = started(config)
    assert found(store, 60) == list(range(1, 61))
    assert (_store(place, settings).state, agent.message_count()) == ("on", 60)
    assert becomes("on", settings, place).name == "writer w"
    last.kill()
    last.wait()
    publish(agent, pack(lines_of([host("m1", 61 * SECOND, 0.5)])))
    assert "peerwatch-writer" in becomes("off", settings, place).mend
    store.close()
    agent.close()
    server.kill()
    assert "is the server up" in _store(place, settings).why
    assert "is the server up" in next(writers(settings, place)).why


def test_what_is_no_stream(tmp_path: Path) -> None:
    """One line says what to write where the stream is missing or stands in the place of a store."""
    config = tmp_path / "p.toml"
    config.write_text(f'store = "{tmp_path}/a.db"\n')
    assert "set writer.stream, or use --from nats://SERVER:4222/STREAM" in one_line(
        process("writer", "--to", "b.db", "--config", config), 1
    )
    config.write_text('store = "nats://a:4222/pw"\n')
    assert "set writer.store, or use --to" in one_line(process("writer", "--config", config), 1)
    assert "peerwatch writer" in one_line(run("status", "--store", "nats://a:4222/pw"), 3)
