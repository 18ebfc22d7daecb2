"""The spool: bounds, kills, a full disk, damage."""

from __future__ import annotations

import logging
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from random import Random

import pytest

from store.line_protocol.write import unpack
from store.schema.contract import StoreError
from store.spool.queue import MAX_REFUSED_LINES, POST_LINES, LineCounts, Post, Spool
from store.spool.schema import FILE

SECOND = 10**9
WRITER = """
import sys
from store.spool.queue import Spool
spool = Spool(sys.argv[1], 10**8, 1e6)
for n in range(1, 100000):
    spool.put([b"host,machine=m1 value=%di %d" % (n, n)], n)
    print(n, flush=True)
"""


def spool(folder: Path, most_bytes: int = 10**8, most_seconds: float = 1e6, resend_seconds: float = 0.0) -> Spool:
    """A spool in this folder."""
    return Spool(folder / "spool", most_bytes, most_seconds, resend_seconds)


def line(n: int) -> bytes:
    """A line like no other, which packs badly."""
    return b"host,machine=m1 value=%s %d" % (os.urandom(100).hex().encode(), n)


def waiting(store: Spool) -> list[bytes]:
    """All lines that wait, oldest first."""
    return [one for post in store.oldest_posts(1 << 30, 1 << 30) for one in unpack(post.body)]


def test_first_in_first_out(tmp_path: Path) -> None:
    """Lines come out as they went in, stay until they are settled, and are gone then, for the next process too."""
    one = spool(tmp_path)
    lines = [line(n) for n in range(7)]
    one.put(lines[:3], 1)
    one.put([], 2)
    one.put(lines[3:], 3)
    assert waiting(one) == waiting(one) == lines
    first, second = one.oldest_posts(1 << 20)
    assert (first.lines, second.lines) == (3, 4)
    assert one.oldest_posts(10) == [first]
    one.settle([first])
    one.close()
    again = spool(tmp_path)
    assert waiting(again) == lines[3:]
    assert again.line_counts() == LineCounts(7, 3, 0, 0, 4, len(second.body))
    again.close()


def test_large_puts_are_cut(tmp_path: Path) -> None:
    """What had to wait in memory and comes all at once becomes posts that a server takes."""
    one = spool(tmp_path)
    lines = [b"host,machine=m1 value=1i %d" % n for n in range(POST_LINES * 2 + 11)]
    one.put(lines, 1)
    assert [post.lines for post in one.oldest_posts(1 << 30, 1 << 30)] == [POST_LINES, POST_LINES, 11]
    assert waiting(one) == lines
    one.close()


def test_bound_by_bytes(tmp_path: Path) -> None:
    """Above the bound the oldest go, are counted, and the newest stay; the counts add up."""
    one = spool(tmp_path, most_bytes=20_000)
    lines = [line(n) for n in range(500)]
    for n, single in enumerate(lines):
        one.put([single], n)
    stored, counts = waiting(one), one.line_counts()
    assert 50 < len(stored) < 400
    assert stored == lines[-len(stored) :]
    assert (counts.taken, counts.dropped, counts.waiting) == (500, 500 - len(stored), len(stored))
    assert counts.waiting_bytes <= 20_000
    one.close()


def test_bound_by_age(tmp_path: Path) -> None:
    """Lines that have waited too long are dropped and counted."""
    one = spool(tmp_path, most_seconds=30.0)
    for second in range(1, 101):
        one.put([line(second)], second * SECOND)
    assert len(waiting(one)) == 31
    assert one.line_counts().dropped == 69
    one.close()


def test_dropped_while_under_way(tmp_path: Path) -> None:
    """A post that the bounds drop while it is being sent is counted once, as dropped."""
    one = spool(tmp_path, most_seconds=30.0)
    one.put([line(1), line(2)], SECOND)
    posts = one.oldest_posts(1 << 20)
    one.put([line(3)], 60 * SECOND)
    one.settle(posts, [(line(1), "400: bad")], 5)
    counts = one.line_counts()
    assert (counts.taken, counts.sent, counts.dropped, counts.refused, counts.waiting) == (3, 0, 2, 0, 1)
    one.close()


def test_refused_lines_stay_for_a_look(tmp_path: Path) -> None:
    """The newest refused lines stay with their reasons; all are counted."""
    one = spool(tmp_path)
    lines = [line(n) for n in range(MAX_REFUSED_LINES + 5)]
    one.put(lines, 1)
    one.settle(one.oldest_posts(1 << 30), [(single, f"400: {n}") for n, single in enumerate(lines)], 9)
    assert one.line_counts().refused == MAX_REFUSED_LINES + 5
    assert one.refused()[0] == ("400: 5", lines[5])
    assert len(one.refused()) == MAX_REFUSED_LINES
    one.close()


def test_kill_loses_nothing(tmp_path: Path) -> None:
    """What was put is there after kill -9, exactly once, and the next process may have the folder."""
    folder = tmp_path / "spool"
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    command = [sys.executable, "-c", WRITER, str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
    assert process.stdout is not None
    for _ in range(200):
        process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    said = process.communicate()[0].splitlines()
    last = int(said[-1]) if said else 200
    one = spool(tmp_path)
    numbers = [int(single.split()[-1]) for single in waiting(one)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert last <= len(numbers) <= last + 1
    assert one.line_counts().taken == one.line_counts().waiting == len(numbers)
    one.close()


def test_one_process_at_a_time(tmp_path: Path) -> None:
    """A second agent on one folder gets one line."""
    one = spool(tmp_path)
    with pytest.raises(StoreError, match="is in use: stop the other agent") as caught:
        spool(tmp_path)
    assert "\n" not in str(caught.value)
    one.close()
    spool(tmp_path).close()


def test_threads_put_while_one_settles(tmp_path: Path) -> None:
    """Nothing is lost or doubled between those that put and the one that takes."""
    one = spool(tmp_path)
    threads = [
        threading.Thread(target=lambda at=at: [one.put([line(at * 1000 + n)], n) for n in range(50)]) for at in range(4)
    ]
    for thread in threads:
        thread.start()
    sent = []
    while len(sent) < 200:
        posts = one.oldest_posts(3000)
        sent += [int(single.split()[-1]) for post in posts for single in unpack(post.body)]
        one.settle(posts)
    for thread in threads:
        thread.join()
    assert sorted(sent) == [at * 1000 + n for at in range(4) for n in range(50)]
    assert one.line_counts() == LineCounts(200, 200, 0, 0, 0, 0)
    one.close()


def numbers(posts: list[Post]) -> list[int]:
    """The times of the lines of these posts."""
    return [int(single.split()[-1]) for post in posts for single in unpack(post.body)]


def test_what_was_sent_is_sent_again(tmp_path: Path) -> None:
    """To a restarted server all is sent again, once, also by the next agent; no line is counted twice."""
    one = spool(tmp_path, resend_seconds=600.0)
    for n in range(1, 8):
        one.put([line(n)], n * SECOND)
    one.settle(one.oldest_posts(1 << 20)[:5], now=8 * SECOND)
    assert one.posts_to_resend(1 << 20) == []
    one.request_resend("Monday")
    one.settle(one.oldest_posts(1 << 20), now=9 * SECOND)
    first = one.posts_to_resend(400)
    assert numbers(first) == [1, 2]
    one.settle_resent(first)
    one.close()
    following = spool(tmp_path, resend_seconds=600.0)
    assert following.began == "Monday"
    rest = following.posts_to_resend(1 << 20)
    assert numbers(rest) == [3, 4, 5]  # the two others were sent to this server
    following.settle_resent(rest)
    assert following.posts_to_resend(1 << 20) == following.oldest_posts(1 << 20) == []
    assert following.line_counts() == LineCounts(7, 7, 0, 0, 0, 0)
    following.request_resend("Tuesday")
    assert numbers(following.posts_to_resend(1 << 20)) == [1, 2, 3, 4, 5, 6, 7]
    following.close()


def test_what_was_sent_goes_after_its_time(tmp_path: Path) -> None:
    """What was sent leaves the disk some time later, but not while it is to be sent again."""
    one = spool(tmp_path, resend_seconds=30.0)
    for n in range(1, 101):
        one.put([line(n)], n * SECOND)
        one.settle(one.oldest_posts(1 << 20), now=n * SECOND)
    one.request_resend("Monday")
    found = one.posts_to_resend(1 << 20)
    assert numbers(found) == list(range(found[0].number, 101))
    assert 30 <= len(found) <= 34
    one.put([line(101)], 300 * SECOND)
    one.settle(one.oldest_posts(1 << 20), now=300 * SECOND)
    assert one.posts_to_resend(1 << 20) == found
    one.settle_resent(found)
    one.put([line(102)], 400 * SECOND)
    one.settle(one.oldest_posts(1 << 20), now=400 * SECOND)
    one.request_resend("Tuesday")
    assert numbers(one.posts_to_resend(1 << 20)) == [102]
    assert one.line_counts() == LineCounts(102, 102, 0, 0, 0, 0)
    one.close()


def test_what_was_sent_makes_room(tmp_path: Path) -> None:
    """Where the bytes do not suffice, what was sent goes before anything that waits, and is no loss."""
    one = spool(tmp_path, most_bytes=20_000, resend_seconds=600.0)
    for n in range(1, 101):
        one.put([line(n)], n)
    one.settle(sent := one.oldest_posts(1 << 20)[:50], now=101)
    one.request_resend("Monday")
    for n in range(101, 151):
        one.put([line(n)], n)
    assert one.line_counts().dropped == 0 < one.line_counts().waiting_bytes < 20_000
    assert 0 < len(left := one.posts_to_resend(1 << 20)) < len(sent)
    assert left == sent[-len(left) :]
    for n in range(151, 251):
        one.put([line(n)], n)
    assert one.posts_to_resend(1 << 20) == []
    counts = one.line_counts()
    assert (counts.taken, counts.sent, counts.dropped + counts.waiting) == (250, 50, 200)
    assert counts.dropped > 0
    one.close()


def test_full_disk(tmp_path: Path) -> None:
    """Where the disk is full, what is not taken is said not to be; what was taken is there and can be sent."""
    one = spool(tmp_path)
    one.put([line(1)], 1)
    one._db.connection.execute("PRAGMA max_page_count = 12")
    with pytest.raises(StoreError, match="the disk is full: free space"):
        one.put([line(n) for n in range(2, 2000)], 2)
    assert one.line_counts().taken == one.line_counts().waiting == 1
    one._db.connection.execute("PRAGMA max_page_count = 100000")
    one.put([line(3)], 3)
    posts = one.oldest_posts(1 << 20)
    assert [post.lines for post in posts] == [1, 1]
    one.settle(posts)
    assert one.line_counts() == LineCounts(2, 2, 0, 0, 0, 0)
    one.close()


def test_space_is_given_back(tmp_path: Path) -> None:
    """After an outage the file shrinks again, a little at each post that is sent."""
    one = spool(tmp_path)
    for n in range(60):
        one.put([line(n * 1000 + at) for at in range(500)], n)
    for post in one.oldest_posts(1 << 30, 1 << 30):
        one.settle([post])
    one._db.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    free, pages = (
        one._db.connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("freelist_count", "page_count")
    )
    assert free <= 500
    assert pages <= 520
    one.close()


def test_damage_is_set_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A damaged spool does not stop the agent: it is renamed and logged, and a new one is begun."""
    folder = tmp_path / "spool"
    folder.mkdir()
    (folder / FILE).write_bytes(b"no database, " * 900)
    one = spool(tmp_path)
    one.put([line(1)], 1)
    assert len(waiting(one)) == 1
    assert (folder / FILE).with_suffix(".damaged").read_bytes().startswith(b"no database, ")
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    one.close()


@pytest.mark.timeout(120)
def test_wrong_bytes_stop_nothing(tmp_path: Path) -> None:
    """Wrong bytes anywhere in the file cost at most the readings in it: none raises, none is worked on for ever."""
    one = spool(tmp_path, resend_seconds=600.0)
    for number in range(1, 21):
        one.put([line(number)], number)
    one.settle(one.oldest_posts(1000), now=5)
    one.close()
    data, chance = (tmp_path / "spool" / FILE).read_bytes(), Random(5)
    aside = 0
    for case in range(80):
        damaged = bytearray(data)
        for _ in range(chance.choice((1, 4, 64, 500))):
            damaged[chance.randrange(len(data))] = chance.randrange(256)
        folder = tmp_path / str(case)
        (folder / "spool").mkdir(parents=True)
        (folder / "spool" / FILE).write_bytes(damaged)
        one = spool(folder, resend_seconds=600.0)
        one.put([line(31)], 10**18)
        while taken := one.oldest_posts(10**6):
            one.settle(taken, now=10**18)
        one.request_resend("some time")
        one.posts_to_resend(1000)
        one.close()
        aside += (folder / "spool" / FILE).with_suffix(".damaged").exists()
    assert aside > 15


def test_posts_that_were_sent_before_they_came(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Posts that count as sent before they came, by one wrong number, are not taken for sent: the file is set aside."""
    one = spool(tmp_path)
    one.put([line(3)], 7)
    one._db.connection.execute("INSERT INTO sent VALUES (72057594037927937, 7)")
    one.close()
    one = spool(tmp_path)
    one.put([new := line(4)], 8)
    assert waiting(one) == [new]
    assert len(caplog.records) == 1
    one.close()


def test_a_folder_that_cannot_be_is_explained(tmp_path: Path) -> None:
    """No folder for the spool: one line that names the key to change."""
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match=r"name another influxdb\.spool_folder"):
        Spool(tmp_path / "file" / "spool", 10**6, 60.0)


def test_a_person_can_look_into_it(tmp_path: Path) -> None:
    """The queue is a plain SQLite file."""
    one = spool(tmp_path)
    one.put([line(1), line(2)], 77)
    one.close()
    plain = sqlite3.connect(tmp_path / "spool" / FILE)
    assert plain.execute("SELECT time, lines FROM post").fetchall() == [(77, 2)]
    plain.close()
