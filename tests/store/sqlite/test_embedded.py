"""The embedded store: many programs at once, kills, damage, retention."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest

from store.schema import columns
from store.schema.contract import StoreError
from store.schema.sample import Batch, Sample
from store.sqlite.embedded import Embedded
from tests.store.conftest import rows

WRITER = """
import sys
from store.sqlite.embedded import Embedded
from store.schema.sample import Batch, Sample
path, machine, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
store = Embedded(path)
for n in range(1, count + 1):
    samples = Sample("host", {"context_switches_total": n}), Sample("novel_" + machine, {"n": n})
    store.write([Batch(machine, n, samples)])
    print(n, flush=True)
"""


def host(machine: str, time: int, value: int) -> Batch:
    """A batch with one reading of a counter."""
    return Batch(machine, time, (Sample("host", {"context_switches_total": value}),))


def writer(path: Path, machine: str, count: int) -> subprocess.Popen[str]:
    """A process that writes batches and prints after each that it is stored."""
    root = str(Path(__file__).parents[3])
    command = [sys.executable, "-c", WRITER, str(path), machine, str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": root})


def test_many_processes_write_while_one_reads(tmp_path: Path) -> None:
    """Six processes that begin the same file at once lose no row, and none is refused while another reads."""
    path = tmp_path / "s.db"
    names = [f"m{n}" for n in range(6)]
    writers = [writer(path, name, 60) for name in names]
    reader = Embedded(path)
    while any(process.poll() is None for process in writers):
        found = reader.read("host", 0, 60)
        assert found.column("time").to_pylist() == sorted(found.column("time").to_pylist())
    assert [process.wait() for process in writers] == [0] * 6
    for process in writers:
        process.communicate()
    assert reader.read("host").num_rows == 360
    assert reader.tables() == ("host", *(f"novel_{name}" for name in names))
    reader.close()


def test_threads_share_one_store(tmp_path: Path) -> None:
    """Threads write through the same object, and all rows are there."""
    store = Embedded(tmp_path / "s.db")

    def work(name: str) -> None:
        for n in range(1, 51):
            store.write([host(name, n, n * 3)])

    threads = [threading.Thread(target=work, args=(f"m{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.read("host").num_rows == 200
    store.close()


def test_kill_loses_nothing_committed(tmp_path: Path) -> None:
    """What a writer reported as stored is there after kill -9, and the file takes new rows."""
    path = tmp_path / "s.db"
    process = writer(path, "m7", 100000)
    assert process.stdout is not None
    stored = [int(process.stdout.readline()) for _ in range(40)][-1]
    process.send_signal(signal.SIGKILL)
    rest = process.communicate()[0].split("\n")
    stored = max([stored, *(int(line) for line in rest[:-1])])
    store = Embedded(path)
    counts = store.read("host").column("context_switches_total").to_pylist()
    assert counts[:stored] == list(range(1, stored + 1))
    store.write([host("m8", 10**6, 5)])
    assert store.read("host", 10**6 - 1).num_rows == 1
    store.close()


def test_a_write_is_stored_whole_or_not_at_all(tmp_path: Path) -> None:
    """Where one sample cannot be stored, nothing of that write is, and the store works on."""
    store = Embedded(tmp_path / "s.db")
    bad = Batch("m1", 2, (Sample("host", {"processes_running": 3}), Sample("host", {"No Name": 5})))
    with pytest.raises(StoreError, match="'No Name' cannot name a table or column"):
        store.write([host("m1", 1, 9), bad])
    assert store.tables() == ()
    store.write([host("m1", 3, 11)])
    assert rows(store, "host") == [{"time": 3, "machine": "m1", "context_switches_total": 11}]
    store.close()


def test_an_odd_value_costs_only_itself(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Text where a number belongs is stored as null and logged once; all beside it is stored."""
    columns._warn.cache_clear()  # another test of this process may have had the same logged
    store = Embedded(tmp_path / "s.db")
    odd = {"gpu": "2", "temperature_celsius": "N/A", "power_watts": 312.5}
    store.write([Batch("m1", n, (Sample("gpu", odd),)) for n in (1, 2)])
    assert rows(store, "gpu", 1) == [{"time": 2, "machine": "m1", "gpu": "2", "power_watts": 312.5}]
    assert [record.message for record in caplog.records] == [
        "gpu.temperature_celsius is a number and was given a str: such values are stored as null"
    ]
    store.close()


@pytest.mark.parametrize("name", ["Weird", 'x"; drop table host; --', "", "sqlite_master", "time"])
def test_names_are_checked(tmp_path: Path, name: str) -> None:
    """A column name that SQL or a person could stumble over is refused in one line."""
    store = Embedded(tmp_path / "s.db")
    with pytest.raises(StoreError) as caught:
        store.write([Batch("m1", 1, (Sample("host", {name: 1.5}),))])
    assert "\n" not in str(caught.value)
    store.close()


def test_a_person_can_query_it(tmp_path: Path) -> None:
    """The file is plain wide tables for any SQLite client, with an index by time."""
    store = Embedded(tmp_path / "s.db")
    store.write([Batch("m1", at, (Sample("gpu", {"gpu": "0", "power_watts": at + 0.5}),)) for at in (1, 2, 3)])
    store.close()
    plain = sqlite3.connect(tmp_path / "s.db")
    found = plain.execute("select time, machine, gpu, power_watts from gpu order by time desc limit 2").fetchall()
    plan = plain.execute("explain query plan select * from gpu where time > 1").fetchall()
    plain.close()
    assert found == [(3, "m1", "0", 3.5), (2, "m1", "0", 2.5)]
    assert "gpu_time" in str(plan)


def test_retention_by_age(tmp_path: Path) -> None:
    """Rows older than the age go, are counted, and the others stay."""
    store = Embedded(tmp_path / "s.db")
    store.write([host("m1", second * 10**9, second) for second in range(1, 101)])
    assert store.prune(100 * 10**9, age_s=30.0) == 69
    assert store.read("host").column("context_switches_total").to_pylist() == list(range(70, 101))
    assert store.prune(100 * 10**9, age_s=30.0) == 0
    store.close()


def test_retention_by_size(tmp_path: Path) -> None:
    """The file shrinks below the bound, the newest rows stay, and a clock gone wrong does not cost the others."""
    store = Embedded(tmp_path / "s.db")
    store.write([Batch("m1", n, (Sample("event", {"message": "x" * 900, "code": str(n)}),)) for n in range(1, 20001)])
    store.write([host("m2", 2**62, 13), host("m1", 19999, 17)])
    before = store.size_bytes()
    dropped = store.prune(20000, size_bytes=5_000_000)
    assert before > 15_000_000
    assert store.size_bytes() <= 5_000_000
    stored = store.read("event").column("time").to_pylist()
    assert stored == list(range(dropped + 1, 20001))
    assert store.read("host").num_rows == 2
    store.close()


def test_the_history_outlives_readings(tmp_path: Path) -> None:
    """Events stay for the history's age, and where the file is too large readings go first."""
    store = Embedded(tmp_path / "s.db")
    event = Sample("event", {"source": "gpu", "code": "xid:79", "message": "x" * 300})
    store.write([Batch("m1", n * 10**9, (event,)) for n in range(1, 61)])
    store.write([host(f"m{n % 7}", n * 10**7, n) for n in range(100, 20001)])
    assert store.prune(200 * 10**9, age_s=150.0, history_s=180.0) == 4900 + 19
    assert store.read("event").num_rows == 41
    size = store.size_bytes()
    store.prune(200 * 10**9, size_bytes=size * 3 // 4)
    assert store.size_bytes() <= size * 3 // 4
    assert store.read("event").num_rows == 41
    assert store.read("host").num_rows > 100
    store.close()


def test_a_size_too_small_for_anything_ends(tmp_path: Path) -> None:
    """A bound that not even the empty tables fit drops all rows and comes to an end."""
    store = Embedded(tmp_path / "s.db")
    store.write([host("m1", n, n) for n in range(1, 8)])
    assert store.prune(9, size_bytes=100) == 7
    store.close()


def test_wrong_files_are_explained(tmp_path: Path) -> None:
    """A file that is no database, or damaged, or absent, is one line with cause and mend."""
    other = tmp_path / "other.db"
    other.write_text("hello, this is no database at all\n" * 40)
    with pytest.raises(StoreError, match=r"other\.db is not an SQLite file: .*[^\n]$"):
        Embedded(other)
    with pytest.raises(StoreError, match="is not there"):
        Embedded(tmp_path / "absent.db", create=False)
    assert not (tmp_path / "absent.db").exists()
    with pytest.raises(StoreError, match="there is no folder"):
        Embedded(tmp_path / "no" / "s.db")
    os.mkfifo(tmp_path / "pipe.db")
    with pytest.raises(StoreError, match=r"pipe\.db is no regular file"):
        Embedded(tmp_path / "pipe.db")


def test_reading_writes_nothing(tmp_path: Path) -> None:
    """Whoever only reads leaves a foreign database, an empty file and an idle store as they are; a write opens them."""
    foreign = tmp_path / "foreign.sqlite"
    other = sqlite3.connect(foreign)
    other.execute("CREATE TABLE bookmarks (url TEXT)")
    other.commit()
    other.close()
    (tmp_path / "empty.db").touch()
    ours = tmp_path / "ours.db"
    store = Embedded(ours)
    store.write([host("m1", 4, 17)])
    store.close()
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    for create in (False, True):
        with pytest.raises(StoreError, match=r"foreign\.sqlite is the database of another program"):
            Embedded(foreign, create)
    empty = Embedded(tmp_path / "empty.db", create=False)
    reader = Embedded(ours, create=False)
    assert (empty.tables(), empty.span(), reader.read("host").num_rows) == ((), None, 1)
    empty.close()
    reader.close()
    assert {name: (tmp_path / name).read_bytes() for name in before} == before
    reader = Embedded(ours, create=False)
    reader.write([host("m1", 5, 18)])
    assert reader.read("host").num_rows == 2
    reader.close()


def test_a_reader_sees_what_is_written_meanwhile(tmp_path: Path) -> None:
    """A reader that was there first, or that came later, reads each row as soon as it is stored."""
    writes = Embedded(tmp_path / "s.db")
    writes.write([host("m1", 4, 17)])
    writes.close()
    reader = Embedded(tmp_path / "s.db", create=False)
    assert reader.read("host").num_rows == 1
    writes = Embedded(tmp_path / "s.db")
    writes.write([host("m1", 5, 18)])
    assert reader.read("host").num_rows == 2
    reader.close()
    writes.close()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("PRAGMA user_version = 7", "was written by a newer Peerwatch .schema 7, here 1.: upgrade it here"),
        (
            "ALTER TABLE verdict RENAME COLUMN task TO job",
            "another Peerwatch: table verdict lacks task; name a new store",
        ),
    ],
)
def test_another_schema_is_named(tmp_path: Path, change: str, said: str) -> None:
    """A store of another version is refused in one line, for reading and for writing; one without a version is ours."""
    store = Embedded(tmp_path / "s.db")
    store.write([Batch("m1", 3, (Sample("verdict", {"task": "t", "level": "ok"}),))])
    assert store._connection.execute("PRAGMA user_version").fetchone() == (1,)
    store._connection.execute("PRAGMA user_version = 0")
    store.close()
    Embedded(tmp_path / "s.db", create=False).close()
    plain = sqlite3.connect(tmp_path / "s.db")
    plain.execute(change)
    plain.commit()
    plain.close()
    for create in (False, True):
        with pytest.raises(StoreError, match=rf"^[^\n]*s\.db {said}|{said}"):
            Embedded(tmp_path / "s.db", create)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_users_outside_the_group_get_one_line(tmp_path: Path) -> None:
    """The file is for user and group alone; others get one line that says how to get in."""
    folder = tmp_path / "state"
    folder.mkdir(mode=0o750)
    os.chown(folder, 0, 33)  # www-data, which every Debian has
    for above in list(tmp_path.parents)[:-1]:
        above.chmod(above.stat().st_mode | 0o055)
    tmp_path.chmod(0o755)
    store = Embedded(folder / "s.db")
    store.write([host("m1", 4, 19)])
    assert {file.stat().st_mode & 0o777 for file in folder.iterdir()} == {0o640}
    code = (
        "import os, sys; from store.sqlite.embedded import Embedded, StoreError; os.setgroups([]); os.setgid(65534)\n"
        "os.setuid(65534)\ntry: Embedded(sys.argv[1], False)\nexcept StoreError as e: print(e)"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    words = [sys.executable, "-c", code, str(folder / "s.db")]
    done = subprocess.run(words, capture_output=True, text=True, env=env, check=True)
    assert "s.db is for members of the group www-data" in done.stdout
    assert "usermod -aG www-data" in done.stdout
    os.chown(folder, 0, 0)
    done = subprocess.run(words, capture_output=True, text=True, env=env, check=True)
    assert "this user may not enter its folder; use sudo" in done.stdout
    assert "usermod" not in done.stdout
    store.close()


def test_damage_is_explained(tmp_path: Path) -> None:
    """A file with overwritten pages gives one line, not a traceback of SQLite's."""
    path = tmp_path / "s.db"
    store = Embedded(path)
    store.write([host(f"machine-{n}", n, n) for n in range(1, 5000)])
    store.close()
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xa5" * (size - 4096))
    with pytest.raises(StoreError, match=r"s\.db is damaged: move it away"):
        Embedded(path).read("host")


def test_damaged_words_are_explained(tmp_path: Path) -> None:
    """Where bytes that are no text stand in the file's own description, SQLite's message cannot be read; ours can."""
    path = tmp_path / "s.db"
    store = Embedded(path)
    store.write([host("m1", 3, 5)])
    store.close()
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"CREATE TABLE", b"CREATE \x9b\xff\xfeBLE"))
    with pytest.raises(StoreError, match=r"s\.db is damaged: move it away"):
        Embedded(path).read("host")


@pytest.mark.parametrize("value", ["GPU-3", b"\x07\xff"])
def test_a_value_that_fits_no_column(tmp_path: Path, value: str | bytes) -> None:
    """A text or bytes in a column of numbers, which SQLite lets stand, are damage that is named."""
    path = tmp_path / "s.db"
    store = Embedded(path)
    store.write([host("m1", 3, 5)])
    store.close()
    with closing(sqlite3.connect(path)) as connection:
        names = [row[1] for row in connection.execute("PRAGMA table_info(host)") if row[2] == "REAL"]
        connection.execute(f'UPDATE host SET "{names[0]}" = ?', (value,))  # noqa: S608 - a name of the catalogue
        connection.commit()
    with pytest.raises(StoreError, match=r"s\.db is damaged: move it away .* \(table host holds what fits no column\)"):
        Embedded(path).read("host")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_others_may_look(tmp_path: Path) -> None:
    """A user without the right to write reads a store that no process holds open; a write fails with its cause."""
    path = tmp_path / "s.db"
    store = Embedded(path)
    store.write([host("m1", 4, 19)])
    store.close()
    for folder in (tmp_path, *list(tmp_path.parents)[:-1]):
        folder.chmod(folder.stat().st_mode | 0o055)
    path.chmod(0o444)
    code = (
        "import os, sys; from store.sqlite.embedded import Embedded, StoreError; from store.schema.sample import *\n"
        "import store.arrow; os.setuid(65534); s = Embedded(sys.argv[1]); print(s.read('host').num_rows)\n"
        "try: s.write([Batch('m', 5, (Sample('host', {'processes_running': 1}),))])\n"
        "except StoreError as e: print(e)"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, env=env, check=True)
    assert done.stdout.splitlines()[0] == "1"
    assert "may only be read by this user" in done.stdout


def test_full_disk_is_explained(tmp_path: Path) -> None:
    """Where the file cannot grow, the error says so, and the store works on once there is room."""
    store = Embedded(tmp_path / "s.db")
    store.write([host("m1", 1, 23)])
    store._connection.execute("PRAGMA max_page_count = 20")
    big = Batch("m1", 2, tuple(Sample("event", {"message": "y" * 4000, "code": str(n)}) for n in range(100)))
    with pytest.raises(StoreError, match="the disk is full: free space"):
        store.write([big])
    store._connection.execute("PRAGMA max_page_count = 100000")
    store.write([big])
    assert (store.read("event").num_rows, store.read("host").num_rows) == (100, 1)
    store.close()


def test_writing_loads_no_arrow(tmp_path: Path) -> None:
    """An agent that only writes never loads pyarrow, which would triple its size."""
    code = (
        "import sys; from store.open import open_store; from store.schema.sample import Batch, Sample\n"
        "s = open_store(sys.argv[1], create=True)\n"
        "s.write([Batch('m', 5, (Sample('host', {'processes_running': 1}),))])\n"
        "s.prune(10, age_s=1.0); s.close(); print([m for m in sys.modules if m.split('.')[0] in ('pyarrow', 'numpy')])"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    command = [sys.executable, "-c", code, str(tmp_path / "s.db")]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=True)
    assert done.stdout.strip() == "[]"
