"""`peerwatch export`."""

from __future__ import annotations

from pathlib import Path

from store.recording import Recording
from store.sqlite.embedded import Embedded
from tests.cli.conftest import SECOND, host, one_line, run

HOUR = 3600 * SECOND


def filled(path: Path) -> Path:
    """A store with a reading at each of 30 hours of 1970."""
    store = Embedded(path)
    store.write([host("m1", n * HOUR, n / 100) for n in range(1, 31)])
    store.close()
    return path


def test_spans(tmp_path: Path) -> None:
    """The export has all rows, the newest ones, or those between two times."""
    store = filled(tmp_path / "s.db")
    done = run("export", tmp_path / "all", "--store", store)
    assert (done.returncode, done.stdout.split()[0]) == (0, "60")
    assert run("export", tmp_path / "last", "--store", store, "--last", "2h").returncode == 0
    assert Recording(tmp_path / "last").read("host").column("time").to_pylist() == [29 * HOUR, 30 * HOUR]
    words = ("--since", "1970-01-01T03:00", "--until", "1970-01-01T05:00Z")
    assert run("export", tmp_path / "some", "--store", store, *words).returncode == 0
    assert Recording(tmp_path / "some").read("gpu").column("time").to_pylist() == [n * HOUR for n in (3, 4, 5)]


def test_refusals(tmp_path: Path) -> None:
    """An existing folder, a span without rows and a wrong time give one line each, and no file."""
    store = filled(tmp_path / "s.db")
    there = tmp_path / "there"
    there.mkdir()
    (there / "mine.txt").write_text("mine")
    assert "is there already" in one_line(run("export", there, "--store", store), 1)
    assert "nothing in that span" in one_line(
        run("export", tmp_path / "x", "--store", store, "--since", "1980-02-03"), 1
    )
    assert "is not a time" in one_line(run("export", tmp_path / "x", "--store", store, "--since", "noon"), 1)
    assert "is not there" in one_line(run("export", tmp_path / "x", "--store", tmp_path / "absent.db"), 1)
    assert run("export", tmp_path / "x", "--since", "2020-01-01", "--last", "1h", "--store", store).returncode == 2
    # SQLite's own files beside the store stay where the last who had it open could only read.
    assert {path.name for path in tmp_path.iterdir()} - {"s.db-shm", "s.db-wal"} == {"s.db", "there"}
    assert "holds mine.txt, which belongs to no recording" in one_line(
        run("export", there, "--store", store, "--overwrite"), 1
    )
    assert (there / "mine.txt").read_text() == "mine"


def test_what_is_replaced(tmp_path: Path) -> None:
    """An option lets the export replace a recording, but not by a part of itself: its labels would be lost."""
    store, folder = filled(tmp_path / "s.db"), tmp_path / "r"
    assert run("export", folder, "--store", store, "--last", "2h").returncode == 0
    (folder / "labels.json").write_text("{}")
    words = "export", tmp_path / "." / "r", "--overwrite", "--store"
    assert "cannot be exported onto itself" in one_line(run(*words, folder), 1)
    assert sorted(path.name for path in folder.iterdir()) == ["gpu.parquet", "host.parquet", "labels.json"]
    assert run(*words, store).returncode == 0
    assert sorted(path.name for path in folder.iterdir()) == ["gpu.parquet", "host.parquet"]
