"""From the spool through a real nats-server into a store: each row once, whoever is killed on the way."""

from __future__ import annotations

import gzip
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path

import msgspec
import pytest

from store.influx.config import InfluxConfig
from store.line_protocol.write import lines_of, pack
from store.nats.config import NatsConfig, StreamAddress, stream_of
from store.nats.stream import Message, Stream
from store.open import open_sink, open_store, open_stream
from store.schema.contract import Store, StoreError
from store.schema.sample import Batch, Sample
from store.spool.queue import Spool
from store.spool.sender import Sender, Spooled
from store.sqlite.embedded import Embedded
from store.transfer.stream_writer import Writer
from tests import servers
from tests.servers import NatsProcess
from tests.store.conftest import influx, rows

NUMBER = itertools.count()
OPTIONS = {"timeout_seconds": 2.0, "keep_bytes": 10**7}  # a server sets aside the room of all its streams


@pytest.fixture
def opened() -> Iterator[Callable[..., Stream]]:
    """A function that opens the stream at an address, closed at the end."""
    streams: list[Stream] = []

    def make(place: str, **options: object) -> Stream:
        streams.append(Stream(stream_of(place), NatsConfig(**{**OPTIONS, **options})))  # type: ignore[arg-type]
        return streams[-1]

    yield make
    for stream in streams:
        stream.close()


@pytest.fixture
def place(nats_server: NatsProcess) -> str:
    """The address of a stream that is not there yet."""
    return f"{nats_server.url}/s{next(NUMBER)}"


def batch(number: int) -> Batch:
    """One reading; each of its values shows its number."""
    event = Sample("event", {"source": "xid", "code": str(number % 3), "message": f'number "{number}"'})
    return Batch(f"m{number % 5}", number * 10**9, (Sample("host", {"cpu_utilization_ratio": number / 64}), event))


def body(*numbers: int) -> bytes:
    """Readings as a spool sends them: a packed piece each."""
    return b"".join(pack(lines_of([batch(number)])) for number in numbers)


def seen(store: Store) -> list[int]:
    """Which readings a store holds, by their events; the hosts' rows must be the same."""
    found = [row["time"] for row in rows(store, "event")]
    assert found == [row["time"] for row in rows(store, "host")]
    return [int(str(one)) // 10**9 for one in found]


def carry(stream: Stream, store: Store, name: str = "w") -> Writer:
    """Write all that is in the stream, also what was given to a writer before and comes again."""
    writer, deadline = Writer(stream, store, name), time.monotonic() + 60
    while writer.step(0.2) or (state := stream.consumer_state(name)).waiting or state.unsettled:
        assert time.monotonic() < deadline
    return writer


def taken(stream: Stream, count: int) -> list[Message]:
    """So many messages as they came first, in however many answers."""
    found: dict[int, Message] = {}
    deadline = time.monotonic() + 60
    while len(found) < count:
        assert time.monotonic() < deadline
        for message in stream.take("w", count - len(found), 1.0):
            found.setdefault(message.sequence, message)
    return [found[number] for number in sorted(found)]


def send(sender: Sender) -> None:
    """Send until nothing waits."""
    deadline = time.monotonic() + 60
    while sender.spool.line_counts().waiting:
        assert time.monotonic() < deadline
        sender.send()


def test_agents_to_two_stores(
    place: str, opened: Callable[..., Stream], tmp_path: Path, database: Callable[[], str]
) -> None:
    """What agents publish reaches an embedded store and InfluxDB, a writer's name each, value for value."""
    sent = open_sink(
        place, InfluxConfig(spool_folder=str(tmp_path / "spool"), spool_bytes=10**7), NatsConfig(keep_bytes=10**7)
    )
    assert isinstance(sent, Spooled)
    for number in range(1, 9):
        sent.write([batch(number)])
    send(sent.sender)
    assert sent.sender.error == ""
    sent.close()
    with_file, with_server = Embedded(tmp_path / "a.db"), influx(database())
    stream = opened(place)
    assert carry(stream, with_file, "files").written == carry(stream, with_server, "servers").written == 8
    assert seen(with_file) == seen(with_server) == list(range(1, 9))
    assert rows(with_file, "event") == rows(with_server, "event")
    assert (stream.consumer_state("files").waiting, stream.consumer_state("servers").lost) == (0, 0)
    with_file.close()
    with_server.close()


def test_published_again(place: str, opened: Callable[..., Stream], tmp_path: Path) -> None:
    """A post that is published again is dropped by the server, and by the store where the server has forgotten it."""
    stream, store = opened(place), Embedded(tmp_path / "a.db")
    assert stream.write(body(3, 4)).good
    assert stream.write(body(4, 3, 7)).good
    assert stream.message_count() == 3
    carry(stream, store)
    late = opened(place)  # the agent was started again: it sends what the server never acknowledged to it
    unknown = gzip.compress(b"\n".join(lines_of([batch(7)])) + b"\n", mtime=5)  # other bytes, so another id
    assert late.write(unknown + body(9)).good
    assert stream.message_count() == 5
    carry(stream, store)
    assert sorted(seen(store)) == [3, 4, 7, 9]
    store.close()


def test_writer_killed_before_it_settled(place: str, opened: Callable[..., Stream], tmp_path: Path) -> None:
    """Messages that were written and never settled come again, to the next writer, and are there once."""
    killed, store = opened(place, settle_seconds=0.4), Embedded(tmp_path / "a.db")
    assert killed.write(body(1, 2, 5)).good
    writer = Writer(killed, store, "w")
    for portion in writer._portions(some := taken(killed, 2)):
        writer._write(portion)
    assert [one.again for one in some] == [True, True]  # an agent's first post may always have been there
    killed.close()
    following = opened(place, settle_seconds=0.4)
    for number in (6, 8):
        assert following.write(body(number)).good
    assert following.consumer_state("w").waiting == 3  # from here on, what comes is new
    assert following.write(body(9)).good
    assert [one.again for one in taken(following, 6)] == [True, True, True, True, True, False]
    carry(following, store)
    assert sorted(seen(store)) == [1, 2, 5, 6, 8, 9]
    store.close()


def test_server_killed_while_publishing(tmp_path: Path, opened: Callable[..., Stream]) -> None:
    """kill -9 of the server between and during posts: what waits in the spool goes out later, nothing twice."""
    server = servers.nats(tmp_path)
    server.start()
    place = f"{server.url}/s"
    spool, store = Spool(tmp_path / "spool", 10**7, 1e6), Embedded(tmp_path / "a.db")
    sender, stream = Sender(spool, opened(place), 1.0), opened(place)
    for number in range(1, 40):
        spool.put(lines_of([batch(number)]), number)
        if number % 10 == 0:
            server.kill()
        sender.send()
        if number % 10 == 5 and server.process is None:
            assert spool.line_counts().waiting >= 12  # six readings of two rows since the kill
            server.start()
            kill = threading.Timer(number * 0.0007, server.kill)  # amid a post, before or after it
            kill.start()
            sender.send()
            kill.join()
            server.start()
            send(sender)
            carry(stream, store)
            assert sorted(seen(store)) == list(range(1, number + 1))
    send(sender)
    assert sender.error == ""
    carry(stream, store)
    assert sorted(seen(store)) == list(range(1, 40))
    spool.close()
    store.close()
    server.kill()


def test_agent_killed_while_publishing(place: str, opened: Callable[..., Stream], tmp_path: Path) -> None:
    """An agent killed at any moment leaves in its spool what the stream may lack; the next one brings it, once."""
    program = (
        "import sys; from store.influx.config import InfluxConfig; from store.nats.config import NatsConfig\n"
        "from store.open import open_sink; from store.schema.sample import Batch, Sample\n"
        "config = NatsConfig(post_seconds=0.1, keep_bytes=10**7)\n"
        "s = open_sink(sys.argv[1], InfluxConfig(spool_folder=sys.argv[2]), config)\n"
        "for n in range(int(sys.argv[3]), 10**6):\n"
        "    s.write([Batch('m1', n * 10**9, (Sample('host', {}), Sample('event', {'code': str(n)})))])\n"
        "    print(n, flush=True)\n"
    )
    first = 1
    for _ in range(2):
        agent = subprocess.Popen(
            [sys.executable, "-c", program, place, str(tmp_path / "spool"), str(first)],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": "."},
        )
        assert agent.stdout is not None
        for line in agent.stdout:
            if (first := int(line) + 2) % 200 == 0:  # what was not printed may be stored all the same
                break
        agent.send_signal(signal.SIGKILL)
        rest = [int(line) for line in agent.stdout if line.endswith(b"\n")]
        first = max([first, *(number + 2 for number in rest)])
        agent.stdout.close()
        agent.wait()
    spool, store = Spool(tmp_path / "spool", 10**8, 1e6), Embedded(tmp_path / "a.db")
    send(Sender(spool, opened(place), 1.0))
    counts = spool.line_counts()
    assert (counts.waiting, counts.dropped, counts.refused) == (0, 0, 0)
    carry(opened(place), store)
    found = seen(store)
    assert len(found) == len(set(found)) == counts.taken // 3  # host, event, and how the spool fares
    store.close()
    spool.close()


def test_store_killed(place: str, opened: Callable[..., Stream], tmp_path: Path) -> None:
    """While the database is away what was taken stays unsettled; when it is back, it is written, once."""
    database = servers.influxd(tmp_path)
    database.start()
    database.ask("CREATE DATABASE metrics WITH DURATION INF SHARD DURATION 106751d")
    stream, store = opened(place, settle_seconds=0.4), influx(f"{database.url}/metrics")
    assert stream.write(body(1, 2)).good
    database.kill()
    with pytest.raises(StoreError, match="is the server up"):
        Writer(stream, store, "w").step(30.0)
    database.start()
    carry(stream, store)
    assert seen(store) == [1, 2]
    store.close()
    database.kill()


def test_store_that_lost_what_it_acknowledged(place: str, opened: Callable[..., Stream], tmp_path: Path) -> None:
    """To an InfluxDB that was killed amid a write, and so forgets what it took since, it is written again."""
    database = servers.influxd(tmp_path)
    database.start()
    database.ask("CREATE DATABASE metrics WITH DURATION INF SHARD DURATION 106751d")
    stream, store = opened(place), influx(f"{database.url}/metrics")
    writer, deadline = Writer(stream, store, "w"), time.monotonic() + 60
    for number in range(1, 8):
        assert stream.write(body(number)).good
        writer.step(10.0)
        if number in (3, 6):
            database.kill()
            if number == 3:
                servers.tear(tmp_path)
            database.start()
            assert seen(store) == [1, 2]  # though it acknowledged all
    while seen(store) != list(range(1, 8)):
        assert time.monotonic() < deadline
        writer.step(0.2)
    assert stream.writers().keys() == {"w"}
    store.close()
    database.kill()


def test_stream_that_dropped(place: str, opened: Callable[..., Stream], tmp_path: Path) -> None:
    """Messages that the stream dropped before anybody took them are counted."""
    stream, store = opened(place, keep_bytes=100_000), Embedded(tmp_path / "a.db")
    assert stream.consumer_state("w").waiting == 0  # begins the writer
    for number in range(1, 6):  # two of them fit
        event = Sample("event", {"source": "xid", "code": "5", "message": os.urandom(30_000).hex()})
        host = Sample("host", {"cpu_utilization_ratio": number / 64})
        assert stream.write(pack(lines_of([Batch("m1", number * 10**9, (host, event))]))).good
    assert stream.consumer_state("w").lost == 3
    writer = carry(stream, store)
    assert (writer.lost, writer.written, seen(store)) == (3, 2, [4, 5])
    store.close()


def test_too_large_a_post(tmp_path: Path, opened: Callable[..., Stream]) -> None:
    """A post that the server does not take whole goes in halves."""
    conf = tmp_path / "nats.conf"
    conf.write_text("max_payload: 16384\n")
    server = servers.nats(tmp_path, "-c", str(conf))
    server.start()
    stream, spool = opened(f"{server.url}/s"), Spool(tmp_path / "spool", 10**7, 1e6)
    events = [Sample("event", {"message": blake2b(b"%d" % number).hexdigest()}) for number in range(1, 500)]
    spool.put(lines_of([Batch("m1", number, (event,)) for number, event in enumerate(events, 1)]), 1)
    assert stream.write(spool.oldest_posts(10**6)[0].body).status == 413
    send(Sender(spool, stream, 1.0))
    store = Embedded(tmp_path / "a.db")
    assert spool.line_counts().sent == 499
    assert carry(stream, store).written == 4
    assert [row["message"] for row in rows(store, "event")] == [event.values["message"] for event in events]
    spool.close()
    store.close()
    server.kill()


def test_lines_that_cannot_be_read(place: str, opened: Callable[..., Stream], tmp_path: Path) -> None:
    """A message of another program is refused and named; those beside it are written."""
    stream, store = opened(place), Embedded(tmp_path / "a.db")
    assert stream.write(body(1) + pack([b"nonsense"]) + body(2)).good
    writer = carry(stream, store)
    assert (writer.refused, writer.written, seen(store)) == (1, 3, [1, 2])
    store.close()


POISON = {
    "five bytes": b"hello",
    "a piece that breaks off": pack([b"host,machine=m1 _row=1i 3"])[:-5],
    "no UTF-8": pack([b"host,machine=m1 _row=1i 3", b"gpu,machine=m1,gpu=\xff _row=1i 1"]),
    "a bomb": gzip.compress(bytes(40 << 20)),
    "lines without end": pack([b"host,machine=m1 _row=1i 3"] * 60_000),
    "a name that no column can have": pack([b"odd,machine=m1 _row=1i,time=4 5"]),
    "columns without end": pack([b"odd,machine=m1 _row=1i,%b 6" % b",".join(b"c%d=1" % n for n in range(700))]),
}


@pytest.mark.parametrize("kind", ["embedded", "influx"])
def test_poison(
    kind: str, place: str, opened: Callable[..., Stream], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What no agent writes is ignored, counted and logged once; the rest is written."""
    stream = opened(place)
    server = servers.influxd(tmp_path) if kind == "influx" else None
    if server:
        server.start()
    store = influx(f"{server.url}/lines", keep_days=36500) if server else Embedded(tmp_path / "a.db")
    assert stream.write(body(1)).good

    async def publish(poison: bytes) -> None:
        await (await stream._connection.jetstream()).publish(stream.address.subject, poison)

    for poison in POISON.values():
        stream._connection.call(publish(poison))
    assert stream.write(body(2)).good
    writer = carry(stream, store)
    assert seen(store) == [1, 2]
    assert writer.unread == (5 if server else 7)
    assert len([one for one in caplog.records if "is ignored" in one.message]) == 1
    store.close()
    if server:
        server.kill()


def test_rights_as_documented(tmp_path: Path, opened: Callable[..., Stream]) -> None:
    """With the rights of docs/security.md an agent publishes, and neither begins a stream nor takes from it."""
    text = (Path(__file__).parents[3] / "docs" / "security.md").read_text()
    rights = text[text.index("    authorization {") :].split("\n\n")[0].replace("…", "pw31")
    (tmp_path / "rights.conf").write_text(rights)
    server = servers.nats(tmp_path, "-c", str(tmp_path / "rights.conf"))
    server.start()
    tokens = {}
    for user in ("agent", "writer"):
        (tmp_path / user).write_text(f"{user}:pw31\n")
        tokens[user] = str(tmp_path / user)
    writer = opened(f"{server.url}/peerwatch", token_file=tokens["writer"])
    assert writer.consumer_state("w").waiting == 0
    agent = opened(f"{server.url}/peerwatch", token_file=tokens["agent"])
    assert agent.write(body(1, 2)).good
    with pytest.raises(StoreError):
        agent.take("w", 5, 0.5)
    with pytest.raises(StoreError):
        opened(f"{server.url}/other", token_file=tokens["agent"], timeout_seconds=0.5).message_count()
    store = Embedded(tmp_path / "a.db")
    assert carry(writer, store).written == 2
    assert seen(store) == [1, 2]
    store.close()
    server.kill()


def test_who_is_let_in(tmp_path: Path, opened: Callable[..., Stream]) -> None:
    """A wrong token is said in one line that does not repeat it; the right one, of either form, is let in."""
    server = servers.nats(tmp_path, "--user", "us", "--pass", "s3cret")
    server.start()
    file = tmp_path / "token"
    file.write_text("us:wr0ng\n")
    refused = opened(f"{server.url}/s", token_file=str(file))
    answer = refused.write(body(1))
    said = refused.explain(answer)
    assert answer.status == 401
    assert "nats.token_file" in said
    assert "wr0ng" not in said
    file.write_text("us:s3cret\n")
    assert opened(f"{server.url}/s", token_file=str(file)).write(body(1)).good
    server.kill()


def test_no_room(place: str, opened: Callable[..., Stream]) -> None:
    """If the server has no room for a stream, the error names the key that makes it smaller."""
    stream = opened(place, keep_bytes=1 << 50)
    answer = stream.write(body(1))
    assert not answer.good
    assert "nats.keep_bytes" in stream.explain(answer)


def test_no_server(opened: Callable[..., Stream]) -> None:
    """Where no server is, or one without streams, the line says so and nothing is raised but StoreError."""
    stream = opened(f"nats://127.0.0.1:{servers.free_port()}/s")
    answer = stream.write(body(1))
    assert answer.status == 0
    assert "is the server up" in stream.explain(answer)
    with pytest.raises(StoreError, match="is the server up"):
        stream.take("w", 1, 0.1)


def test_addresses(tmp_path: Path) -> None:
    """One or several servers and a stream; anything else is refused by a line that shows the form and no secret."""
    assert stream_of("nats://a:4222,b:4333/pw") == StreamAddress(("nats://a:4222", "nats://b:4333"), "pw")
    for wrong in ("nats://a:4222", "nats:///pw", "nats://a/b/c", "nats://a/p w", "nats://us:s3cret@a:4222/pw"):
        with pytest.raises(StoreError, match="nats://SERVER:4222/STREAM") as error:
            open_stream(wrong)
        assert "s3cret" not in str(error.value)
    with pytest.raises(StoreError, match="peerwatch writer"):
        open_store("nats://a:4222/pw")
    with pytest.raises(StoreError, match=r"nats\.token_file"):
        Stream(stream_of("nats://a/pw"), NatsConfig(token_file=str(tmp_path / "absent")))
    with pytest.raises(ValueError, match=r"<= 5 - at `\$.replicas`"):
        msgspec.convert({"replicas": 9}, NatsConfig)
