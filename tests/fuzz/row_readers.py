"""Rows that whoever may write to the store has written: what the detector judges, and what commands show."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random

from typer.testing import CliRunner

from cli.main import app
from detector.alerts.shared_log import SharedLog
from detector.alerts.sinks.command import Command, CommandConfig
from detector.engine.pipeline import replay
from detector.model.verdict_rows import verdict_of
from detector.service.lease import current
from store.open import open_store
from store.schema.catalogue import METRICS, TABLES
from store.schema.contract import StoreError
from store.schema.sample import Batch, Sample, Value
from store.signed import key_of
from store.sqlite.embedded import Embedded
from store.transport.tokens import token_of
from tests.fuzz.reader import Reader, packed, text

_BEGIN = 1_700_000_000 * 10**9
_NUMBERS = (0, 1, -1, 7, 2**31, 2**53 + 1, 2**63 - 1, -(2**63), 2**70, 0.5, -0.0, 1e-320, 1e300, -1e300)
_FLOATS = (float("nan"), float("inf"), float("-inf"))
_TIMES = (1, _BEGIN - 10**17, _BEGIN + 10**17, 2**63 - 1)
_CODES = ("xid:79", "maintenance", "clear", "ack", "false_alarm", "maintenance_end", "zoom", "left", "begin", "")
_TABLES = sorted({metric.table for metric in METRICS.values()})
_COLUMNS = {table: [metric.name for metric in METRICS.values() if metric.table == table] for table in _TABLES}
_THEN, _LATER = "2023-11-14T22:14:00Z", "2023-11-15T00:00:00Z"
"""A minute, and hours, after the rows that are as they should be."""
_SCREENS = (
    *(("status",), ("status", "--at", _THEN, "--all"), ("status", "--at", _THEN, "--notes", "--json")),
    *(("show", "1"), ("show", "m1"), ("show", "1", "--json"), ("report", "verdict", "1", "--html", "{folder}/v.html")),
    *(("tasks",), ("tasks", "--at", _THEN, "--json"), ("history", "--until", _LATER), ("jobs",), ("jobs", "--json")),
    *(("report", "startup"), ("report", "startup", "--days", "300", "--until", _LATER, "--json")),
    *(("maintenance",), ("placement", "--topology", "{folder}/t.csv"), ("suspects", "stacks", "--since", _THEN)),
    *(("suspects", "standby"), ("behaviour", "{place}"), ("operators", "{place}"), ("replay", "{place}", "--json")),
    *(("report", "stragglers", "{place}", "--days", "3"), ("export", "{folder}/exported")),
)
_VERDICT: dict[str, tuple[Value, ...]] = {
    "task": ("m1", "0x1:0x2", "all"),
    "device": ("gpu:0", "rdma:mlx5_0", None),
    "kind": ("peer", "progress", "evidence"),
    "metric": ("gpu.power_watts", "event.silent", "event.xid", "gpu.", ""),
    "score": (3.0,),
    "since": (_BEGIN + 5 * 10**9,),
    "level": ("crit", "warn", "ok"),
    "message": ("draws 311 W",),
}
"""What a verdict may say, where it is as it should be."""


def _value(chance: Random, words: list[str]) -> Value:
    kind = chance.random()
    if kind < 0.6:
        return chance.choice(_NUMBERS)
    return chance.choice(words) if kind < 0.9 else chance.choice((*_FLOATS, None))


def _rows(data: bytes, chance: Random) -> list[Batch]:
    """A minute of rows of all tables: mostly as they should be, some with anything in any column."""
    words = [*data.decode(errors="replace").split("\n"), "gpu:0", "m1", "all", "crit", "ok", "operator", "detector"]
    odd = chance.randrange(2400)  # the row with a time far off, where there are so many: the silence between is judged
    found = []
    for at in range(40):
        for machine in (*(f"m{n}" for n in range(5)), chance.choice(words) or "m1"):
            samples = [Sample("gpu", {"gpu": "0", "power_watts": 300.0 + chance.random(), "busy_ratio": 0.5})]
            for table in chance.sample(_TABLES, 3):
                keys = {key: str(_value(chance, words)) for key in TABLES[table].keys}
                if table == "event":
                    keys = {"source": chance.choice(words), "code": chance.choice((*_CODES, *words))}
                columns = chance.sample(_COLUMNS[table], min(len(_COLUMNS[table]), 4))
                odd -= 1
                time = None if odd else chance.choice(_TIMES)
                samples.append(Sample(table, {**keys, **{name: _value(chance, words) for name in columns}}, time))
            if chance.random() < 0.03:
                samples.append(Sample("verdict", _verdict(chance, words)))
            found.append(Batch(machine, _BEGIN + at * 10**9, tuple(samples)))
    return found


def _verdict(chance: Random, words: list[str]) -> dict[str, Value]:
    right = {name: chance.choice(values) for name, values in _VERDICT.items()}
    return {name: value if chance.random() < 0.8 else _value(chance, words) for name, value in right.items()}


def _stored(data: bytes, folder: Path, chance: Random, read: Callable[[str], None]) -> None:
    for left in folder.iterdir():
        shutil.rmtree(left) if left.is_dir() else left.unlink()
    with closing(Embedded(folder / "s.db")) as store:
        for batch in _rows(data, chance):
            store.write([batch])
    read(str(folder / "s.db"))


def _judged(data: bytes, folder: Path, chance: Random) -> None:
    """The detector judges them, takes up verdicts and a lease, and reads what sinks were sent."""

    def judge(place: str) -> None:
        with closing(open_store(place)) as store, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of numbers that are none, or beyond all bounds
            list(replay(store))
            for row in store.read("verdict").to_pylist():
                verdict_of(row)
            current(store)
            SharedLog(store).read()

    _stored(data, folder, chance, judge)


def _shown(data: bytes, folder: Path, chance: Random) -> None:
    """A command shows them: an exit code, no traceback, and no command to the terminal."""

    def show(place: str) -> None:
        (folder / "t.csv").write_text("machine,leaf\nm0,leaf1\nm1,leaf2\n")
        words = [word.format(folder=folder, place=place) for word in chance.choice(_SCREENS)]
        words += [] if place in words else ["--store", place]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # as above
            done = CliRunner().invoke(app, words, env={"COLUMNS": "200"}, prog_name="peerwatch")
        if done.exception and not isinstance(done.exception, SystemExit):
            raise done.exception
        assert not set(done.output) & set("\x1b\x07\x9b\x9d"), done.output

    _stored(data, folder, chance, show)


def _runs(data: bytes, folder: Path, _: Random) -> None:
    (folder / "runs.json").write_bytes(data)
    Command(CommandConfig(run=("/bin/true",)), folder / "runs.json", lambda: _BEGIN)


def _secrets(data: bytes, folder: Path, _: Random) -> None:
    """A signing key and a token."""
    (folder / "key").write_bytes(data)
    token_of("influxdb", str(folder / "key"), "none", "PEERWATCH_NONE")
    key_of(folder / "key")


_RUN = {"time": _BEGIN, "machine": "m3", "incident": "9dc7141ebdaed94b", "level": "crit", "dry": False, "done": True}
_WORDS = "m3\n\x1b]0;x\x07\n[/red]\n<b>\ngpu:9999999999999999999\n" + "9" * 30 + "\nslow\u202egpu\n5e8f\n0x1:0x2\n[0,1]"

ROW_READERS = (
    Reader("judged rows", text(_WORDS.encode().decode("latin1")), _judged, hang_s=60.0),
    Reader("shown rows", text(_WORDS.encode().decode("latin1")), _shown, opens=("/etc/", "/proc/", "/var/lib/")),
    Reader("command's runs", text(packed([_RUN])), _runs, (ValueError,)),
    Reader("secrets", text("5e8f" * 16 + "\n"), _secrets, (StoreError,)),
)
