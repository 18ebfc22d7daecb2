"""From the spool to the server: every answer, every failure, and nothing lost."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from store.influx.config import InfluxConfig, address_of
from store.influx.influxql import Influx
from store.influx.server import Server
from store.line_protocol.write import lines_of
from store.schema.contract import StoreError
from store.schema.sample import Batch, Sample
from store.spool.post import UnsentError, post
from store.spool.queue import Spool
from store.spool.sender import BACK_OFF_S, Sender, Spooled
from store.transport.answers import Answer
from tests import servers
from tests.servers import ServerProcess
from tests.store.conftest import influx
from tests.wires import Reply, Scripted, Wire

TOKEN = "s3cr3t-t0ken"  # noqa: S105 - no secret
LINES = [b"host,machine=m1 value=%di %d" % (n * 3, n) for n in range(1, 33)]


class Rig:
    """A spool, a sender that is not started, and a server that follows a script."""

    def __init__(self, folder: Path, dialect: str) -> None:
        self.script = Scripted()
        self.spool = Spool(folder / "spool", 10**8, 1e6)
        self.server = server(f"{self.script.url}/metrics", folder, dialect=dialect, org="us")
        self.sender = Sender(self.spool, self.server, 4.0)

    def answer(self, reply: Callable[[list[bytes]], Reply]) -> None:
        """From now on answer like this."""
        self.script.reply = reply

    def close(self) -> None:
        """End all."""
        self.spool.close()
        self.server.close()
        self.script.close()


def server(place: str, folder: Path, **options: object) -> Server:
    """The server at this address, spoken to with a token."""
    file = folder / "token"
    file.write_text(f"{TOKEN}\n")
    return Server(address_of(place), InfluxConfig(token_file=str(file), **options))  # type: ignore[arg-type]


@pytest.fixture(params=["v1", "v2"])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    """The rig in each dialect."""
    made = Rig(tmp_path, request.param)
    yield made
    made.close()


def bad(lines: list[bytes]) -> Reply:
    """As a server that refuses any body in which line 13 or 14 stands."""
    found = [line for line in lines if line.split()[-1] in (b"13", b"14")]
    return (400, '{"code":"invalid","message":"unable to parse"}', {}) if found else (204, "", {})


def test_what_is_taken_is_gone(rig: Rig) -> None:
    """A server that takes all leaves nothing waiting; the request is the dialect's, with the token in a header."""
    rig.spool.put(LINES[:9], 1)
    rig.spool.put(LINES[9:], 2)
    assert 3.0 <= rig.sender.send() <= 5.0
    assert rig.script.received == LINES
    assert (rig.spool.line_counts().waiting, rig.spool.line_counts().sent) == (0, 32)
    path, headers = rig.script.asked[0]
    wanted = (
        "/write?db=metrics&precision=ns" if "/write?db" in path else "/api/v2/write?org=us&bucket=metrics&precision=ns"
    )
    assert path == wanted
    assert headers["Authorization"] == f"Token {TOKEN}"
    assert TOKEN not in path


@pytest.mark.parametrize("status", [429, 500, 503, 302, 418])
def test_a_busy_server_is_left_alone(rig: Rig, status: int) -> None:
    """What a server cannot take now waits; the pause it asks for is obeyed, and doubles if it asks for none."""
    rig.spool.put(LINES, 1)
    rig.answer(lambda lines: (status, "busy", {"Retry-After": "77"}))
    assert rig.sender.send() == 77.0
    rig.answer(lambda lines: (status, "busy", {}))
    waits = [rig.sender.send() for _ in range(12)]
    first, longest = BACK_OFF_S
    assert all(min(longest, first * 2 ** (n + 1)) / 2 <= wait <= longest for n, wait in enumerate(waits))
    assert rig.spool.line_counts().waiting == 32
    rig.answer(lambda lines: (204, "", {}))
    assert rig.sender.send() <= 5.0
    assert rig.script.received == LINES


def test_a_date_to_come_back_at(rig: Rig) -> None:
    """Retry-After may be a date; one far away is not obeyed for ever."""
    rig.spool.put(LINES, 1)
    later = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + 1e6))
    rig.answer(lambda lines: (503, "", {"Retry-After": later}))
    assert rig.sender.send() == 900.0


@pytest.mark.parametrize("status", [401, 403, 404])
def test_what_a_person_must_mend_is_said_loudly(rig: Rig, status: int, caplog: pytest.LogCaptureFixture) -> None:
    """A wrong token or bucket loses nothing, and is said once with its mend; the token is in no message."""
    rig.spool.put(LINES, 1)
    rig.answer(lambda lines: (status, '{"error":"no such thing"}', {}))
    for _ in range(3):
        rig.sender.send()
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(said) == 1
    assert ("influxdb.token_file" if status < 404 else "create the database or bucket") in said[0]
    assert rig.spool.line_counts().waiting == 32
    assert TOKEN not in caplog.text + rig.sender.error


def test_too_much_is_halved(rig: Rig) -> None:
    """A body that is too large goes in pieces; a single line that is too large is set aside."""
    rig.spool.put(LINES[:16], 1)
    rig.spool.put(LINES[16:], 2)
    rig.answer(lambda lines: (413, "too large", {}) if len(lines) > 3 or LINES[7] in lines else (204, "", {}))
    rig.sender.send()
    assert rig.script.received == [line for line in LINES if line != LINES[7]]
    assert rig.spool.refused() == [("413: too large", LINES[7])]


@pytest.mark.parametrize("status", [400, 422])
def test_bad_lines_are_searched_for(rig: Rig, status: int) -> None:
    """Bad lines are found and stored with the server's reason; all others are sent; the counts add up."""
    rig.spool.put(LINES[:5], 1)
    rig.spool.put(LINES[5:], 2)
    rig.answer(lambda lines: (status, *bad(lines)[1:]) if bad(lines)[0] == 400 else (204, "", {}))
    rig.sender.send()
    assert sorted(set(rig.script.received)) == sorted(set(LINES) - {LINES[12], LINES[13]})
    assert rig.spool.refused() == [(f"{status}: unable to parse", LINES[at]) for at in (12, 13)]
    counts = rig.spool.line_counts()
    assert (counts.taken, counts.sent, counts.refused, counts.waiting) == (32, 30, 2, 0)


def test_a_line_end_within_a_text_is_no_line_end(rig: Rig) -> None:
    """The search for a bad line does not tear texts with line ends in them apart."""
    event = Sample("event", {"source": "kernel_log", "code": "mce", "message": 'a\nb "c\\" 5\nd'})
    lines = lines_of([Batch("m1", n, (event,)) for n in (11, 12, 13)])
    rig.spool.put(lines, 1)
    rig.answer(lambda _: (400, "", {}))
    rig.sender.send()
    assert rig.spool.refused() == [("400: ", line) for line in lines]


def test_all_too_old_at_once(rig: Rig) -> None:
    """Where a server says that it dropped every line, no search follows."""
    rig.spool.put(LINES, 1)
    said = '{"error":"partial write: points beyond retention policy dropped=32"}'
    rig.answer(lambda lines: (400, said, {}))
    rig.sender.send()
    assert len([path for path, _ in rig.script.asked if "write" in path]) == 2
    assert rig.spool.line_counts().refused == 32


def test_a_search_that_is_interrupted_begins_again(rig: Rig) -> None:
    """Where the server goes away during the search, nothing of the post is given up."""
    rig.spool.put(LINES, 1)
    calls = iter(range(100))
    rig.answer(lambda lines: (503, "", {}) if next(calls) > 4 else bad(lines))
    rig.sender.send()
    assert rig.spool.line_counts().waiting == 32
    rig.answer(bad)
    rig.sender.send()
    assert set(rig.script.received) == set(LINES) - {LINES[12], LINES[13]}
    assert rig.spool.line_counts().refused == 2


@pytest.mark.parametrize("dialect", ["v1", "v2", "auto"])
def test_no_server(tmp_path: Path, dialect: str) -> None:
    """Without a server everything waits, and the one line that is said names the address."""
    spool = Spool(tmp_path / "spool", 10**8, 1e6)
    absent = server(f"http://127.0.0.1:{servers.free_port()}/metrics", tmp_path, dialect=dialect)
    sender = Sender(spool, absent, 1.0)
    spool.put(LINES, 1)
    assert sender.send() >= 0.5
    assert "does not answer" in sender.error
    assert "Connection refused" in sender.error
    assert spool.line_counts().waiting == 32
    with pytest.raises(UnsentError):
        post(absent, LINES)
    with pytest.raises(StoreError, match="is the server up"):
        Influx(absent).write([Batch("m1", 1, (Sample("host", {"processes_running": 2}),))])
    spool.close()


BEGIN = time.time_ns()  # a real server drops what is older than it keeps


def batch(n: int) -> Batch:
    """A reading with two rows."""
    samples = (Sample("host", {"context_switches_total": n}), Sample("event", {"source": "s", "code": f"c{n % 3}"}))
    return Batch("m1", BEGIN + n * 10**9, samples)


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until this holds, a minute at most."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_outages_of_wire_and_server_lose_nothing(tmp_path: Path) -> None:
    """Cut, hanging and reset connections and a server killed and started again: every row is there, exactly once."""
    folder = tmp_path / "influxd"
    folder.mkdir()
    real = servers.influxd(folder)
    real.start()
    wire = Wire(real.port)
    config = InfluxConfig(post_seconds=0.1, timeout_seconds=0.3)
    place = f"http://127.0.0.1:{wire.port}/metrics"
    sink = Spooled(Server(address_of(place), config), Spool(tmp_path / "spool", 10**8, 1e6))
    sink.sender.post_seconds = 0.02
    counter = iter(range(1, 10**6))
    taken = 0

    def some() -> None:
        nonlocal taken
        for n in (next(counter) for _ in range(20)):
            sink.write([batch(n)])
            taken = n
            time.sleep(0.002)

    some()
    wait_for(lambda: sink.spool.line_counts().waiting == 0)
    for trouble in (wire.cut, lambda: setattr(wire, "mode", "hang"), real.kill):
        trouble()
        some()
        wait_for(lambda: sink.sender.failures > 0)
        some()
        wire.mode = "through"
        if real.process is None:
            real.start()
        sink.sender.failures = 0  # the wait before the next attempt is what other tests look at
        wait_for(lambda: sink.spool.line_counts().waiting == 0)
    counts = sink.spool.line_counts()
    sink.close()
    reader = influx(f"{real.url}/metrics")
    assert reader.read("host").column("context_switches_total").to_pylist() == list(range(1, taken + 1))
    assert reader.read("event").num_rows == taken
    assert (counts.taken, counts.sent, counts.dropped, counts.refused) == (
        taken * 3,
        taken * 3,
        0,
        0,
    )
    options = reader.read("source")
    assert options.num_rows == taken
    assert max(options.column("waiting_rows").to_pylist()) > 60
    reader.close()
    wire.close()
    real.kill(signal.SIGTERM)


def sent(real: ServerProcess, sender: Sender, *numbers: int) -> list[object]:
    """Send these readings, and what is to be sent again; returns what the server has then."""
    for n in numbers:
        sender.spool.put(lines_of([batch(n)]), time.time_ns())
        sender.send()
    while sender.spool.line_counts().waiting or sender.spool.posts_to_resend(1):
        sender.send()
    reader = influx(f"{real.url}/metrics")
    found: list[object] = reader.read("host").column("context_switches_total").to_pylist()
    assert reader.read("event").num_rows == len(found)
    reader.close()
    return found


@pytest.mark.parametrize("noticed", [False, True])
def test_a_server_that_lost_what_it_acknowledged(tmp_path: Path, noticed: bool) -> None:
    """It is sent all again, once, also where no post failed meanwhile; no line is counted twice."""
    folder = tmp_path / "influxd"
    folder.mkdir()
    real = servers.influxd(folder)
    real.start()
    spool = Spool(tmp_path / "spool", 10**8, 1e6, 600.0)
    sender = Sender(spool, Server(address_of(f"{real.url}/metrics"), InfluxConfig()), 1.0)
    assert sent(real, sender, 1, 2, 3) == [1, 2, 3]
    real.kill()
    for lost in ("wal", "data"):
        shutil.rmtree(folder / lost)
    if noticed:
        spool.put(lines_of([batch(4)]), time.time_ns())
        sender.send()
        assert sender.failures == 1
    real.start()
    assert sent(real, sender, 5) == [1, 2, 3, *([4] if noticed else []), 5]
    counts = spool.line_counts()
    assert counts.taken == counts.sent == (10 if noticed else 8)
    spool.close()
    real.kill()


def test_a_server_that_was_killed_amid_a_write(tmp_path: Path) -> None:
    """InfluxDB 1.6.7 reads what it wrote behind a torn entry until it restarts; then it is sent again."""
    folder = tmp_path / "influxd"
    folder.mkdir()
    real = servers.influxd(folder)
    real.start()
    sender = Sender(
        Spool(tmp_path / "spool", 10**8, 1e6, 600.0), Server(address_of(f"{real.url}/metrics"), InfluxConfig()), 1.0
    )
    assert sent(real, sender, 1, 2) == [1, 2]
    real.kill()
    servers.tear(folder)
    real.start()
    assert sent(real, sender, 3, 4) == [1, 2, 3, 4]
    real.kill()
    real.start()
    reader = influx(f"{real.url}/metrics")
    assert reader.read("host").column("context_switches_total").to_pylist() == [1]  # though it acknowledged four
    reader.close()
    assert sent(real, sender, 5) == [1, 2, 3, 4, 5]
    sender.spool.close()
    real.kill()


def test_a_wire_that_was_cut_has_nothing_sent_again(tmp_path: Path) -> None:
    """A server that says it is still the same has what it has acknowledged."""
    real = servers.influxd(tmp_path)
    real.start()
    wire = Wire(real.port)
    spool = Spool(tmp_path / "spool", 10**8, 1e6, 600.0)
    sender = Sender(spool, Server(address_of(f"http://127.0.0.1:{wire.port}/metrics"), InfluxConfig()), 1.0)
    assert sent(real, sender, 1, 2) == [1, 2]
    wire.cut()
    spool.put(lines_of([batch(3)]), time.time_ns())
    sender.send()
    assert sender.failures == 1
    wire.mode = "through"
    sender.send()
    assert (spool.line_counts().waiting, spool.posts_to_resend(1)) == (0, [])
    assert spool.began
    spool.close()
    wire.close()
    real.kill()


@pytest.mark.parametrize("dialect", ["v1", "v2"])
def test_a_server_that_does_not_say_since_when_it_runs(tmp_path: Path, dialect: str) -> None:
    """After a lost connection all is sent again, without what it refused; busy is not lost."""
    script = Scripted()
    wire = Wire(int(script.url.rpartition(":")[2]))
    spool = Spool(tmp_path / "spool", 10**8, 1e6, 600.0)
    unsaid = server(f"http://127.0.0.1:{wire.port}/metrics", tmp_path, dialect=dialect, org="us")
    sender = Sender(spool, unsaid, 1.0)
    script.reply = bad
    spool.put(LINES[:20], time.time_ns())
    sender.send()
    script.reply = lambda lines: (503, "", {})
    spool.put(LINES[20:], time.time_ns())
    sender.send()
    script.reply = bad
    sender.send()
    good = [line for line in LINES if line not in LINES[12:14]]
    assert sorted(script.received) == sorted(good)
    wire.cut()
    spool.put([b"host,machine=m1 value=1i 99"], time.time_ns())
    sender.send()
    wire.mode = "through"
    script.received.clear()
    while spool.line_counts().waiting or spool.posts_to_resend(1):
        sender.send()
    assert sorted(script.received) == sorted([*good, b"host,machine=m1 value=1i 99"])
    assert spool.line_counts().refused == 2
    spool.close()
    wire.close()
    script.close()


AGENT = """
import sys
from store.influx.config import InfluxConfig, address_of
from store.spool.sender import Spooled
from store.influx.server import Server
from store.transport.answers import Answer
from store.line_protocol.write import lines_of
from store.schema.sample import Batch, Sample
from store.spool.queue import Spool
server = Server(address_of(sys.argv[1]), InfluxConfig(post_seconds=0.1))
sink = Spooled(server, Spool(sys.argv[2], 10**8, 1e6))
for n in range(int(sys.argv[3]), 10**6):
    sink.write([Batch("m1", n * 10**9, (Sample("host", {"context_switches_total": n}),))])
    print(n, flush=True)
"""


def test_kills_of_the_agent_lose_nothing(tmp_path: Path, database: Callable[[], str]) -> None:
    """An agent killed again and again amid sending: every row that its spool took is in the server, exactly once."""
    place, folder, last = database(), tmp_path / "spool", 0
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    for _ in range(3):
        command = [sys.executable, "-c", AGENT, place, str(folder), str(last + 1)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
        assert process.stdout is not None
        for _ in range(700):
            last = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        rest = process.communicate()[0].split("\n")[:-1]
        last = int(rest[-1]) if rest else last
    reader = influx(place)
    sink = Spooled(Server(address_of(place), InfluxConfig(post_seconds=0.1)), Spool(folder, 10**8, 1e6))
    wait_for(lambda: sink.spool.line_counts().waiting == 0)
    counts = sink.spool.line_counts()
    found = reader.read("host").column("context_switches_total").to_pylist()
    assert sorted(set(found)) == sorted(found)
    assert set(range(1, last + 1)) <= set(found)
    assert counts.taken == counts.sent
    sink.close()
    reader.close()


def test_sampling_never_waits(tmp_path: Path) -> None:
    """While the server hangs, a hundred readings are taken before its first answer could have come."""
    listener = Wire(servers.free_port())
    listener.mode = "hang"
    config = InfluxConfig(post_seconds=0.1, timeout_seconds=600.0, dialect="v1")
    sink = Spooled(Server(address_of(f"http://127.0.0.1:{listener.port}/m"), config), Spool(tmp_path / "s", 10**8, 1e6))
    for n in range(1, 101):
        sink.write([batch(n)])
    assert sink.spool.line_counts().waiting == 300
    listener.close()
    sink.close()


def test_the_agents_side_loads_no_arrow(tmp_path: Path) -> None:
    """An agent that writes to InfluxDB loads neither pyarrow, nor influxdb-client before it is needed."""
    code = (
        "import sys; from store.influx.config import InfluxConfig; from store.open import open_sink\n"
        "from store.schema.sample import Batch, Sample\n"
        "s = open_sink('http://127.0.0.1:9/m', InfluxConfig(spool_folder=sys.argv[1], dialect='v1'))\n"
        "s.write([Batch('m', 5, (Sample('host', {'processes_running': 1}),))]); s.close()\n"
        "print([m for m in sys.modules if m.split('.')[0] in ('pyarrow', 'numpy', 'influxdb_client', 'msgpack')])"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    command = [sys.executable, "-c", code, str(tmp_path / "spool")]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=True)
    assert done.stdout.strip() == "[]"


def test_a_fault_of_our_own_ends_no_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever goes wrong in the sender, it is said, counted, and tried again."""
    made = Rig(tmp_path, "v1")
    monkeypatch.setattr("store.spool.sender.BACK_OFF_S", (0.01, 0.01))
    faults = iter([ZeroDivisionError("ours"), ZeroDivisionError("again")])
    write = made.server.write

    def faulty(body: bytes) -> Answer:
        fault = next(faults, None)
        if fault is not None:
            raise fault
        return write(body)

    monkeypatch.setattr(made.server, "write", faulty)
    made.sender.post_seconds = 0.01
    made.spool.put(LINES, 1)
    made.sender.start()
    wait_for(lambda: made.spool.line_counts().waiting == 0)
    assert made.script.received == LINES
    made.sender.stop()
    made.close()
