"""`peerwatch top`: keys, what is read, the screen, and a terminal that is as before afterwards."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import closing
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from rich.console import Console

from cli.queries.fleet_status import READINGS
from cli.queries.live_history import LAG_NS, NAMES, LiveHistory
from cli.views.top.keyboard import keys_of
from cli.views.top.screen import draw
from cli.views.top.state import SORTS, TopState
from store.schema.sample import Batch, Sample
from store.sqlite.embedded import Embedded
from tests.cli.conftest import ROOT, SECOND, one_line, run, verdict

NOW = 1_780_000_000 * SECOND


def batch(machine: str, at: int, watts: float, operations: int) -> Batch:
    """One reading of a machine with two GPUs, the second of which draws 50 W more."""
    rows = [Sample("host", {"cpu_utilization_ratio": 0.25})]
    for gpu in (0, 1):
        rank = {"gpu": str(gpu), "slot": "0", "comm": "beef", "rank": gpu, "ranks": 2, "operation": "AllReduce:f32:9"}
        rows.append(Sample("nccl", {**rank, "operations_total": operations, "iteration_seconds": 1.5}))
        gpu_row = {"gpu": str(gpu), "power_watts": watts + 50 * gpu, "uuid": f"GPU-{machine}-{gpu}"}
        rows.append(Sample("gpu", gpu_row))
    return Batch(machine, at, tuple(rows))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A store with five machines; one is critical, one silent for 40 s, one for longer than a minute."""
    now = time.time_ns()
    with closing(Embedded(tmp_path / "s.db")) as store:
        for back in range(59, -1, -1):
            for number, name in enumerate(("m1", "m2", "m3", "m4")):
                if name != "m4" or back > 40:
                    store.write([batch(name, now - back * SECOND, 300.0 + 10 * number, 60 - back)])
        store.write([batch("m5", now - 200 * SECOND, 350.0, 1)])
        store.write([verdict("m2", now - 9 * SECOND, "crit"), verdict("m3", now - 9 * SECOND, "warn")])
        store.write([verdict("m3", now - 5 * SECOND, "ok")])
    return tmp_path / "s.db"


def history_of(place: Path) -> LiveHistory:
    """All that is in the store by now."""
    history = LiveHistory()
    with closing(Embedded(place)) as store:
        history.read(store, time.time_ns())
    return history


def screen(state: TopState, history: LiveHistory, size: tuple[int, int] = (80, 24)) -> list[str]:
    """The lines of the screen."""
    console = Console(file=StringIO(), width=size[0], height=size[1], color_system=None, legacy_windows=False)
    console.print(draw(state, history, size))
    assert isinstance(console.file, StringIO)
    return console.file.getvalue().splitlines()


def test_the_fleet_at_80_columns(place: Path) -> None:
    """The screen has one row a machine, the worst first, with a curve; no line is wider than the terminal."""
    lines = screen(TopState(), history_of(place))
    assert lines[0].startswith("fleet  1 crit, 2 unknown, 2 ok, sorted by level")
    wanted = [["m2", "crit"], ["m4", "unknown"], ["m5", "unknown"], ["m1", "ok"], ["m3", "ok"]]
    assert [line.split()[:2] for line in lines[2:7]] == wanted
    assert "335" in lines[2]  # the mean of 310 and 360 W
    assert max(map(len, lines)) <= 80
    assert lines[-1].rstrip() == "1 of 5, ? help, q quit"


def test_from_machine_to_gpu_to_rank(place: Path) -> None:
    """Enter goes down to GPUs with their identity and then to ranks, escape comes back."""
    state, history = TopState(), history_of(place)
    screen(state, history)
    state.press("enter")
    lines = screen(state, history, (120, 24))
    assert lines[0].startswith("fleet > m2")
    assert [line.split()[0] for line in lines[2:4]] == ["0", "1"]
    assert "GPU-m2-1" in lines[3]
    state.press("down")
    state.press("enter")
    lines = screen(state, history)
    assert lines[0].startswith("fleet > m2 > 1")
    assert lines[2].split() == ["0", "1", "of", "2", "beef", "AllReduce:f32:9", "1.5"]
    for key in ("enter", "escape", "left"):
        state.press(key)
    assert (state.path, state.quit) == ((), False)


def test_a_store_without_recent_readings() -> None:
    """An empty list says why; with a filter the filter is why."""
    state = TopState()
    assert "no reading of the last 5 minutes: does the agent run?" in screen(state, LiveHistory())[-1]
    state.filter = "m9"
    assert "nothing to show, filter 'm9'" in screen(state, LiveHistory())[-1]


def test_order_and_filter(place: Path) -> None:
    """Rows are ordered by any reading, either way; a filter and `o` leave out machines."""
    state, history = TopState(sort="gpu_watts"), history_of(place)

    def names() -> list[str]:
        screen(state, history)
        return list(state.rows)

    assert names() == ["m3", "m2", "m1", "m4", "m5"]  # nothing is known of the last two any more
    state.press("r")
    assert names() == ["m1", "m2", "m3", "m4", "m5"]
    for key in ("/", "M", "3", "q", "backspace", "enter"):
        state.press(key)
    assert (names(), state.filter, state.quit) == (["m3"], "M3", False)
    for key in ("/", "escape", "o"):
        state.press(key)
    assert names() == ["m2", "m4", "m5"]


def test_every_key_has_a_meaning() -> None:
    """Sorting goes round all columns, help closes by any key, the cursor stays within the rows, q quits."""
    state = TopState()
    state.show(("a", "b", "c"), 2)
    for _ in SORTS:
        state.press("s")
    assert state.sort == "level"
    state.press("S")
    assert state.sort == SORTS[-1]
    for key, cursor in (("down", 1), ("G", 2), ("j", 2), ("page up", 0), ("up", 0), ("page down", 2), ("home", 0)):
        state.press(key)
        assert state.cursor == cursor
    state.press("?")
    assert "filter by a part" in "\n".join(screen(state, LiveHistory()))
    state.press("x")
    assert not state.help
    for key in ("unknown key", "é", " "):
        state.press(key)
    assert state.paused
    state.press("q")
    assert state.quit


def test_keys_of_a_terminal() -> None:
    """Escape sequences have names, unknown ones and control characters are passed over, text is text."""
    assert keys_of("\x1b[A\x1bOBj\x1b[5~\r\x7f") == ["up", "down", "j", "page up", "enter", "backspace"]
    assert keys_of("\x1b[1;5Cq\x00\x01é\x1b") == ["q", "é", "escape"]
    assert keys_of("\x1b[200~") == []


def test_rates_go_on_from_reading_to_reading(tmp_path: Path) -> None:
    """Rows that come in pieces give the same curves as at once, counters without a gap; old seconds fall out."""
    with closing(Embedded(tmp_path / "s.db")) as store:
        for at in range(150):
            store.write([batch("m1", NOW + at * SECOND, 300.0 + at, 7 * at)])
        piece, whole = LiveHistory(), LiveHistory()
        for at in (90, 93, 94, 120, 149):
            piece.read(store, NOW + at * SECOND + LAG_NS)
        whole.read(store, NOW + 149 * SECOND + LAG_NS)
    place = np.array([whole.entities["m1",]])
    for reading in range(len(READINGS)):
        curves = [history.curves(reading, place)[0] for history in (piece, whole)]
        assert np.array_equal(*curves, equal_nan=True)
    watts, rate = (whole.curves(NAMES.index(name), place)[0] for name in ("gpu_watts", "operations_per_second"))
    assert watts.tolist() == [325.0 + at for at in range(90, 150)]
    assert rate.tolist() == [7.0] * 60


class Fleet:
    """A store of a thousand machines of eight GPUs in memory."""

    def __init__(self) -> None:
        names = np.repeat([f"m{at:04}" for at in range(1000)], 8)
        self.columns = {"machine": pa.array(names), "gpu": pa.array(np.tile([str(at) for at in range(8)], 1000))}

    def read(self, table: str, after: int = 0, until: int = 0, columns: Any = None) -> pa.Table:
        """A row a second of each GPU."""
        seconds = range(max(after // SECOND + 1, until // SECOND - 70), until // SECOND + 1)
        if table != "gpu":
            return pa.table({"time": pa.array([], pa.int64()), "machine": pa.array([], pa.string())})
        parts = [
            pa.table({"time": np.full(8000, at * SECOND), **self.columns, "power_watts": np.arange(8000) / 20 + at % 7})
            for at in seconds
        ]
        return pa.concat_tables(parts)

    def tables(self) -> tuple[str, ...]:
        """One."""
        return ("gpu",)


def test_a_thousand_machines() -> None:
    """A second of 8,000 GPUs is taken over, and a screen drawn, in less than the second that follows."""
    fleet, history, state = Fleet(), LiveHistory(), TopState(sort="gpu_watts")
    store: Any = fleet
    history.read(store, NOW)
    begun = time.process_time()
    history.read(store, NOW + SECOND)
    lines = screen(state, history, (120, 40))
    assert time.process_time() - begun < 1.0
    assert lines[2].split()[0] == "m0999"
    assert lines[-1].startswith("1 of 1000")
    state.press("G")
    assert screen(state, history, (120, 40))[-2].split()[0] == "m0000"


class Terminal:
    """The command in a terminal of 80 columns."""

    def __init__(self, place: Path, **variables: str) -> None:
        self.ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.before = termios.tcgetattr(theirs)
        env = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", **variables}
        env.pop("COLUMNS", None)
        command = [sys.executable, "-m", "cli.main", "top", "--store", str(place)]
        self.process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env)
        self.theirs, self.text = theirs, ""

    def until(self, words: str, seconds: float = 60.0) -> None:
        """Read until the screen has said so."""
        limit = time.monotonic() + seconds
        while words not in self.text:
            assert time.monotonic() < limit, self.text[-3000:]
            if select.select([self.ours], [], [], 0.2)[0]:
                self.text += os.read(self.ours, 1 << 16).decode(errors="replace")

    def press(self, keys: str) -> None:
        """Type."""
        self.text = ""
        os.write(self.ours, keys.encode())

    def end(self) -> int:
        """Its exit code, once it has ended and restored the terminal: settings, cursor and screen."""
        limit = time.monotonic() + 60
        while self.process.poll() is None:
            assert time.monotonic() < limit
            if select.select([self.ours], [], [], 0.1)[0]:
                self.text += os.read(self.ours, 1 << 16).decode(errors="replace")
        while select.select([self.ours], [], [], 0.2)[0]:
            self.text += os.read(self.ours, 1 << 16).decode(errors="replace")
        assert termios.tcgetattr(self.theirs) == self.before
        assert "\x1b[?1049l" in self.text  # the usual screen is back
        assert "\x1b[?25h" in self.text  # and the cursor
        os.close(self.ours)
        os.close(self.theirs)
        return self.process.returncode


@pytest.fixture
def terminal(place: Path) -> Iterator[Terminal]:
    """The command, showing the store."""
    made = Terminal(place)
    made.until("sorted by level")
    yield made
    if made.process.poll() is None:
        made.process.kill()


def test_a_person_at_a_terminal(terminal: Terminal) -> None:
    """Keys answer, `?` shows them, `q` ends with 0 and the terminal is as before."""
    terminal.until("m2")
    terminal.press("?")
    terminal.until("keys")
    terminal.press("x\x1b[B\r")
    terminal.until("fleet > ")
    terminal.press("q")
    assert terminal.end() == 0
    assert "Traceback" not in terminal.text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_restores_the_terminal(terminal: Terminal, number: int) -> None:
    """Ctrl-C and the signals that end a session leave a terminal that works."""
    if number == signal.SIGINT:
        terminal.process.send_signal(number)
    else:
        os.kill(terminal.process.pid, number)
    assert terminal.end() == 130
    assert "Traceback" not in terminal.text


def test_a_store_that_goes_away(place: Path) -> None:
    """The screen says that the store cannot be read, and still answers keys."""
    terminal = Terminal(place)
    terminal.until("sorted by level")
    for file in place.parent.glob("s.db*"):
        file.unlink()
    place.write_text("no database")
    terminal.press("?")
    terminal.until("keys")
    terminal.press("xq")
    assert terminal.end() == 0


def test_an_ascii_terminal(place: Path) -> None:
    """A terminal without Unicode gets curves of plain characters."""
    terminal = Terminal(place, PYTHONIOENCODING="ascii", NO_COLOR="1")
    terminal.until("m2")
    terminal.press("q")
    assert terminal.end() == 0
    assert terminal.text.isascii()


def test_without_a_terminal(place: Path) -> None:
    """A pipe gets one line that names the command for scripts."""
    assert "peerwatch status --json" in one_line(run("top", "--store", place), 1)


def test_status_again_and_again(place: Path) -> None:
    """`status --watch` prints the state every so many seconds; as JSON one object a line."""
    command = [sys.executable, "-m", "cli.main", "status", "--watch", "1", "--json", "--store", str(place)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(2)]
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
    assert all('"machine": "m1"' in line for line in lines)
    assert lines[0] != lines[1]
