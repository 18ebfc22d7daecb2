"""The command: what reaches the program, and all that keeps it from being run."""

from __future__ import annotations

import json
import logging
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from detector.alerts.alert import Alert, IncidentTracker, RefusedError, RetryLaterError, sample
from detector.alerts.sinks.command import ATTEMPTS, HOUR_NS, Command, CommandConfig
from detector.model.verdict import Level, Verdict
from store.schema.time import SECOND

NOW = 1_780_000_000 * SECOND


class Clock:
    """A clock that is set by hand."""

    now = NOW

    def __call__(self) -> int:
        """Unix ns."""
        return self.now


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Command]:
    """A function that opens a command with state on disk, which notes its arguments and runs these lines of Python."""

    def open_command(code: str = "", clock: Clock | None = None, **settings: Any) -> Command:
        script = tmp_path / "program.py"
        note = f"open({str(tmp_path / 'ran')!r}, 'a').write(' '.join(sys.argv[1:]) + chr(10))"
        script.write_text(f"import sys, os, json, time\n{note}\n{code}\n")
        words = (sys.executable, str(script), "{machine}", "drain", "why={incident}", "{level}")
        config = CommandConfig(**{"run": words, "dry_run": False, "most_share": 0.5, **settings})
        return Command(config, tmp_path / "state" / "runs.json", clock or Clock())

    return open_command


def alert(machine: str = "m3", level: Level = "crit", fleet: int = 8, at: int = NOW) -> Alert:
    """One alert that an incident has begun."""
    verdict = Verdict(at, "t9", machine, "gpu:1", "peer", "a.b", 2.25, at - 7, level, f"{machine}\n'differs' $(rm)")
    found = IncidentTracker().record(verdict)
    assert found is not None
    return replace(found, fleet=fleet)


def over(begun: Alert) -> Alert:
    """The end of that incident."""
    well = replace(begun.verdict, level="ok", time=NOW + 99 * SECOND)
    return replace(begun, event="over", verdict=well, end=well.time)


def alive(pid: int) -> bool:
    """Whether the process still runs."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] not in "ZX"
    except OSError:
        return False


def ran(folder: Path) -> list[list[str]]:
    """The arguments of each run."""
    file = folder / "ran"
    return [shlex.split(line) for line in file.read_text().splitlines()] if file.exists() else []


def test_the_program_gets_the_alert(
    make: Callable[..., Command], tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program gets the alert as arguments, JSON and environment without tokens; its output is logged."""
    monkeypatch.setenv("PEERWATCH_TOKEN", "hush")
    code = "print(json.load(sys.stdin)['message'], os.environ['PEERWATCH_MESSAGE'], os.environ.get('PEERWATCH_TOKEN'))"
    found = alert()
    with caplog.at_level(logging.INFO):
        assert make(code).send(found).startswith("ran ")
    assert ran(tmp_path) == [["m3", "drain", f"why={found.incident}", "crit"]]
    assert "exit code 0; output: m3 'differs' $(rm) m3 'differs' $(rm) None" in caplog.text


def test_dry_is_the_default(make: Callable[..., Command], tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """By default the sink only says what it would run, under the same bounds; a test does no more than that."""
    assert CommandConfig().dry_run
    dry = make(dry_run=True)
    assert dry.send(alert()).startswith("dry run, so not run: [")
    assert "'m3', 'drain'" in caplog.text
    with pytest.raises(RefusedError, match="most_per_hour = 4 is reached: m7"):
        [dry.send(alert(f"m{n}")) for n in range(4, 8)]
    assert "'peerwatch-test', 'drain'" in make().test(sample(NOW, 8))
    assert ran(tmp_path) == []


def test_once_an_incident(make: Callable[..., Command], tmp_path: Path) -> None:
    """A further alert on an incident does not run the program again, even after a restart; nor does a lower level."""
    command = make()
    command.send(alert())
    for sink in (command, make()):
        assert sink.send(alert()) == "nothing to run"
    assert command.send(alert("m4", "warn")) == "nothing to run"
    assert len(ran(tmp_path)) == 1


def test_a_machine_that_was_put_back_is_taken_out_when_its_incident_goes_on(
    make: Callable[..., Command], tmp_path: Path
) -> None:
    """An incident that was over and begins again under its key runs the program again, at each turn once."""
    command, begun = make(levels=("crit", "ok")), alert()
    again = replace(begun, event="changed")
    for sent in (begun, begun, over(begun), over(begun), again, again):
        command.send(sent)
    assert [words[-1] for words in ran(tmp_path)] == ["crit", "ok", "crit"]


def test_never_more_than_the_share(make: Callable[..., Command], tmp_path: Path) -> None:
    """The machine that would be too many is skipped, with the figures; so is one of an unknown fleet."""
    command = make(most_share=0.25)
    command.send(alert("m1"))
    command.send(alert("m2"))
    with pytest.raises(RefusedError, match=r"3 of 8 machines are more than most_share = 0.25: m3 is skipped"):
        make(most_share=0.25).send(alert("m3"))
    with pytest.raises(RefusedError, match="2 of 0 machines"):
        make(most_share=1.0).send(alert("m1", fleet=0, at=NOW + 5))
    assert [words[0] for words in ran(tmp_path)] == ["m1", "m2"]


def test_a_machine_counts_until_it_is_back(make: Callable[..., Command], tmp_path: Path) -> None:
    """A machine counts as out until the program has put it back or the hold is over; no other is put back."""
    clock = Clock()
    command = make(clock=clock, levels=("crit", "ok"), most_share=0.125, hold_seconds=7200.0)
    first = alert("m1")
    command.send(first)
    with pytest.raises(RefusedError, match="2 of 8"):
        command.send(alert("m2"))
    with pytest.raises(RefusedError, match="m2 was not taken out"):
        command.send(over(alert("m2")))
    command.send(over(first))
    command.send(alert("m2", at=NOW + 1))
    clock.now = NOW + 7201 * SECOND
    command.send(alert("m3", at=NOW + 2))
    assert [(words[0], words[3]) for words in ran(tmp_path)] == [
        ("m1", "crit"),
        ("m1", "ok"),
        ("m2", "crit"),
        ("m3", "crit"),
    ]


def test_never_more_an_hour(make: Callable[..., Command], tmp_path: Path) -> None:
    """The bound holds over a restart, and is free again after the hour."""
    clock = Clock()
    make(clock=clock, most_per_hour=1).send(alert("m1"))
    with pytest.raises(RefusedError, match="most_per_hour = 1 is reached: m2 is skipped"):
        make(clock=clock, most_per_hour=1).send(alert("m2"))
    clock.now += HOUR_NS
    make(clock=clock, most_per_hour=1).send(alert("m2"))
    assert [words[0] for words in ran(tmp_path)] == ["m1", "m2"]


@pytest.mark.parametrize("name", ["-f", "m[1-9]", "m1,m2", "", "m 1", "../m", "m1\n", "ALL;rm"])
def test_a_name_that_could_mean_more_is_not_passed_on(make: Callable[..., Command], tmp_path: Path, name: str) -> None:
    """The program never gets a name that could be an option, a pattern or several machines."""
    with pytest.raises(RefusedError, match="not a name that may be passed to a program"):
        make().send(alert(name))
    assert ran(tmp_path) == []


def test_failures(make: Callable[..., Command], tmp_path: Path) -> None:
    """A program that fails is tried again, some times; one that is not there says so."""
    command = make("print('no such node'); sys.exit(3)")
    for _ in range(ATTEMPTS):
        with pytest.raises(RetryLaterError, match="ended with code 3 for m3: no such node"):
            command.send(alert())
    with pytest.raises(RefusedError, match="has failed 3 times for m3: skipped"):
        command.send(alert())
    assert len(ran(tmp_path)) == ATTEMPTS
    with pytest.raises(RetryLaterError, match="/no/such/program cannot be run: No such file"):
        make(run=("/no/such/program",)).send(alert("m4"))


def test_what_hangs_is_killed_with_all_it_began(make: Callable[..., Command], tmp_path: Path) -> None:
    """Program and children are gone after the time limit, though a child holds the output open."""
    pids = tmp_path / "pid"
    # A shell, since Python might not have come so far in that time on a busy machine.
    code = f"echo $$ >> {pids}; sleep 600 & echo $! >> {pids}; wait"
    with pytest.raises(RetryLaterError, match=r"took longer than 0\.7 s"):
        make(run=("/bin/sh", "-c", code), timeout_seconds=0.7).send(alert())
    assert len(pids.read_text().split()) == 2
    for pid in pids.read_text().split():
        deadline = time.monotonic() + 30
        while alive(int(pid)):
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_what_cannot_be_written_down_is_not_run(make: Callable[..., Command], tmp_path: Path) -> None:
    """No program runs without a file of past runs, since no bound would hold; the error names a damaged file."""
    command = make()
    (tmp_path / "state").write_text("a file where a folder should be")
    with pytest.raises(OSError, match="state"):
        command.send(alert())
    assert ran(tmp_path) == []
    (tmp_path / "state").unlink()
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "runs.json").write_text("[{")
    with pytest.raises(ValueError, match=r"runs.json, the record of alerts.command, cannot be read"):
        make()


def test_settings(tmp_path: Path) -> None:
    """The error names the key of a missing program and of bounds that cannot be meant."""
    with pytest.raises(ValueError, match=r"set alerts.command.run"):
        Command(CommandConfig(), tmp_path / "x", Clock())
    with pytest.raises(ValueError, match=r"<= 1.0 - at `\$.most_share`"):
        msgspec.convert({"most_share": 5}, CommandConfig)
    assert json.loads(json.dumps(alert().as_json()))["fleet"] == 8
