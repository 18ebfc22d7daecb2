"""A hundred agents write to one InfluxDB while server and agents are killed at random; then everything is counted.

Every second kill of the server leaves the last entry of its log half written, after which InfluxDB 1.6.7 loses what it
acknowledges until the next. Ten minutes, or as many seconds as PEERWATCH_SOAK_SECONDS says.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from store.influx.config import InfluxConfig, address_of
from store.influx.server import Server
from store.spool.queue import LineCounts, Spool
from store.spool.sender import Spooled
from tests import servers
from tests.store.conftest import influx

pytestmark = pytest.mark.bench

SECONDS = float(os.environ.get("PEERWATCH_SOAK_SECONDS", "600"))
PROCESSES, AGENTS = 20, 5
"""Processes, and agents in each of them."""
AGENT = """
import os, sys, time
from pathlib import Path
from store.influx.config import InfluxConfig, address_of
from store.spool.sender import Spooled
from store.influx.server import Server
from store.schema.sample import Batch, Sample
from store.spool.queue import Spool
place, folder, *names = sys.argv[1:]
sinks, said = {}, {}
for name in names:
    server = Server(address_of(place), InfluxConfig(timeout_seconds=5.0))
    sinks[name] = Spooled(server, Spool(Path(folder) / name, 10**8, 1e6, 3600.0))
    said[name] = os.open(Path(folder) / f"{name}.stored", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
due = time.monotonic()
while True:
    for name, sink in sinks.items():
        now = time.time_ns()
        event = Sample("event", {"source": "soak", "code": str(now % 5), "message": str(now)})
        sink.write([Batch(name, now, (Sample("host", {"context_switches_total": now}), event))])
        os.write(said[name], b"%d\\n" % now)
    due += 1.0
    time.sleep(max(0.0, due - time.monotonic()))
"""


def start(place: str, folder: Path, number: int) -> subprocess.Popen[bytes]:
    """A process of some agents."""
    names = [f"m{number * AGENTS + n:03}" for n in range(AGENTS)]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    command = [sys.executable, "-c", AGENT, place, str(folder), *names]
    return subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL)


def drained(place: str, folder: Path, began: str) -> LineCounts:
    """What has become of an agent's lines, once nothing waits for the server that began then."""
    sink = Spooled(Server(address_of(place), InfluxConfig(post_seconds=0.1)), Spool(folder, 10**8, 1e6, 3600.0))
    while sink.spool.line_counts().waiting or sink.spool.posts_to_resend(1) or sink.spool.began != began:
        time.sleep(0.02)
    counts = sink.spool.line_counts()
    sink.close()
    return counts


def trouble(
    server: servers.ServerProcess,
    folder: Path,
    agents: list[subprocess.Popen[bytes]],
    again: Callable[[int], subprocess.Popen[bytes]],
) -> tuple[int, int]:
    """Kill server and agents at random and start them again, all the time; how many kills of each."""
    end, kills, dice = time.monotonic() + SECONDS, [0, 0], random.Random(11)
    while time.monotonic() < end:
        time.sleep(dice.uniform(1.0, 4.0))
        if dice.random() < 0.25:
            server.kill()  # amid whatever is under way
            if kills[0] % 2:
                servers.tear(folder)
            time.sleep(dice.uniform(0.0, 6.0))
            server.start()
            kills[0] += 1
        else:
            victim = dice.randrange(PROCESSES)
            agents[victim].kill()
            agents[victim].wait()
            agents[victim] = again(victim)
            kills[1] += 1
    return kills[0], kills[1]


def test_soak(tmp_path: Path) -> None:
    """Every row that a spool took is in the server exactly once, and the totals add up to what the server holds."""
    server = servers.influxd(tmp_path)
    server.patience_s = 1200.0  # losing and doubling is judged, not how long a busy machine takes to read a log again
    server.start()
    place = f"{server.url}/metrics"
    agents = [start(place, tmp_path, number) for number in range(PROCESSES)]
    try:
        kills = trouble(server, tmp_path, agents, lambda number: start(place, tmp_path, number))
    finally:
        for agent in agents:
            agent.kill()
            agent.wait()
    names = sorted(path.stem for path in tmp_path.glob("m*.stored"))
    store = influx(place)
    totals = [drained(place, tmp_path / name, store.server.began()) for name in names]
    tables = {table: store.read(table) for table in ("host", "event", "source")}
    found = list(zip(*(tables["host"].column(name).to_pylist() for name in ("machine", "time")), strict=True))
    stored = {(name, int(when)) for name in names for when in (tmp_path / f"{name}.stored").read_text().split()}
    taken, sent = sum(one.taken for one in totals), sum(one.sent for one in totals)
    lost = sum(one.dropped + one.refused for one in totals)
    rows = sum(table.num_rows for table in tables.values())
    print(
        f"\n{len(names)} agents, {SECONDS:.0f} s, {kills[0]} kills of the server, {kills[1]} of {AGENTS} agents each: "
        f"{len(stored)} readings were reported as stored, {len(stored - set(found))} of them are missing, "
        f"{len(found) - len(set(found))} are twice there; spools took {taken} rows, sent {sent}, lost {lost}, "
        f"the server has {rows}"
    )
    assert len(names) == PROCESSES * AGENTS
    assert stored <= set(found)
    assert len(found) == len(set(found))
    assert (taken, lost) == (sent, 0)
    assert rows == sent
    store.close()
    server.kill()
