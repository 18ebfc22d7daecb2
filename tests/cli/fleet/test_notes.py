"""Notes: what differs and slows no task is written once by the detector, and listed by `peerwatch status --notes`."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

from detector.config import Config
from detector.model.verdict import Verdict
from detector.service.runner import Runner
from store.schema.sample import Batch, Sample
from store.schema.time import SECOND
from store.sqlite.embedded import Embedded
from tests.cli.conftest import run

WORDS = "m4: 37 processes running (median of 5 peers: 3)"


def test_a_note_is_written_once_and_listed_on_demand(tmp_path: Path) -> None:
    """A note reaches the store as an event that opens no incident, and `status` lists it only with --notes."""
    end = time.time_ns() // SECOND * SECOND
    store = Embedded(tmp_path / "s.db")
    for second in range(40, 0, -1):
        row = Sample("gpu", {"gpu": "0", "power_watts": 411.0 + second % 7})
        store.write([Batch(f"m{n}", end - second * SECOND, (row,)) for n in range(6)])
    runner = Runner(store, Config(), end - 20 * SECOND)
    runner.catch_up(end - 10 * SECOND, threading.Event())
    for note_time in (end - 30 * SECOND, end - 5 * SECOND):  # the first belongs to the history that is read again
        note = Verdict(note_time, "t", "m4", None, "peer", "host.processes_running", 1.7, note_time, "note", WORDS)
        runner.detector.state.incidents.notes.append(note)
    assert runner.catch_up(end - 4 * SECOND, threading.Event()) == []
    assert runner.catch_up(end - 2 * SECOND, threading.Event()) == []
    events = [row for row in store.read("event").to_pylist() if row["code"] == "note"]
    assert [(row["machine"], row["time"], row["message"]) for row in events] == [("m4", end - 5 * SECOND, WORDS)]
    assert store.read("verdict").num_rows == 0
    store.close()
    assert WORDS not in run("status", "--store", tmp_path / "s.db").stdout
    listed = run("status", "--notes", "--store", tmp_path / "s.db").stdout
    assert f"note: {WORDS} (" in listed
    found = json.loads(run("status", "--notes", "--json", "--store", tmp_path / "s.db").stdout)
    assert [(note["machine"], note["message"]) for note in found["notes"]] == [("m4", WORDS)]
