"""The command as a whole: help, version, completion, errors, interruption."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from cli.main import Commands, app
from tests.cli.conftest import ROOT, one_line, process, run

COMMANDS = ("demo", "status", "doctor", "up", "replay", "simulate", "export", "copy", "agent", "detector")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str) -> None:
    """Each command says what it does, and so does each of its options and arguments."""
    done = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200", "TERM": "dumb"})
    assert done.exit_code == 0
    options = [line for line in done.output.splitlines() if line.startswith("│ ") and "--" in line.split("  ")[0]]
    assert len(options) >= 2
    assert all(len(line.strip("│ ").split("  ")) > 1 for line in options)


def test_version_and_bare_command() -> None:
    """The version is one line; without a command there is help."""
    done = CliRunner().invoke(app, ["--version"])
    assert done.output.split() == ["peerwatch", "0.1.0"]
    assert "replay" in CliRunner().invoke(app, []).output


def test_completion() -> None:
    """The shell completes `stat` to `status`."""
    variables = {"_PEERWATCH_COMPLETE": "complete_bash", "COMP_WORDS": "peerwatch stat", "COMP_CWORD": "1"}
    done = run(**variables)
    assert (done.returncode, done.stdout.split()) == (0, ["status"])


def test_wrong_options() -> None:
    """An unknown command or option gives exit code 2, but 3 of `status`, where 2 means a faulty machine."""
    assert run("stat").returncode == 2
    assert run("replay", "--nonsense").returncode == 2
    assert run("status", "--nonsense").returncode == 3


def test_what_the_system_refuses(tmp_path: Path) -> None:
    """An error of the operating system names file and reason, without its number."""
    little = typer.Typer(cls=Commands)
    little.callback()(lambda: None)
    little.command("read")(lambda: print((tmp_path / "none").read_text()))
    done = CliRunner().invoke(little, ["read"])
    assert (done.exit_code, done.stderr) == (1, f"peerwatch: {tmp_path}/none: No such file or directory\n")


@pytest.mark.parametrize("words", [("--help",), ("config", "show"), ("history", "--help")])
def test_output_that_has_no_room(words: tuple[str, ...]) -> None:
    """Output to a full disk is one line that says so; closed output, like closed errors, changes no exit code."""
    command = [sys.executable, "-m", "cli.main", *words]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=env, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "the output cannot be written: no space is left" in done.stderr
    for closed in (">&-", "2>&-"):
        shell = ["/bin/sh", "-c", f'"$@" {closed}', "sh", *command]
        done = subprocess.run(shell, capture_output=True, text=True, env=env, check=False)
        assert (done.returncode, done.stderr) == (0, "")


def test_a_library_that_is_not_installed() -> None:
    """A command that needs one which a machine's package leaves out says so in a line, with the mend."""

    def read() -> None:
        raise ModuleNotFoundError("No module named 'sklearn'", name="sklearn")

    little = typer.Typer(cls=Commands)
    little.callback()(lambda: None)
    little.command("read")(read)
    done = CliRunner().invoke(little, ["read"])
    assert done.exit_code == 1
    assert done.stderr.startswith("peerwatch: this needs sklearn, which is not installed here: install the package")
    assert done.stderr.count("\n") == 1


def test_debug_shows_where(tmp_path: Path) -> None:
    """An error is one line, and with --debug a traceback."""
    assert "is no store" in one_line(run("replay", tmp_path / "none"), 1)
    assert "Traceback" in process("--debug", "replay", tmp_path / "none").stderr


def test_interruption_while_it_is_loaded_is_quiet() -> None:
    """Ctrl-C before the command has begun ends it by that signal, without a word; another error has its traceback."""
    for raised, code, said in (("KeyboardInterrupt", -signal.SIGINT, False), ("ZeroDivisionError", 1, True)):
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-c", f"import cli; raise {raised}"]
        done = subprocess.run(command, capture_output=True, text=True, env=env, check=False, timeout=60)
        assert (done.returncode, bool(done.stderr)) == (code, said)


def test_interruption_is_quiet(tmp_path: Path) -> None:
    """Ctrl-C ends a command with 130 and no word."""
    fifo = tmp_path / "peerwatch.toml"
    os.mkfifo(fifo)
    command = [sys.executable, "-m", "cli.main", "replay", str(tmp_path), "--config", str(fifo)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env)
    with fifo.open("w"):  # opens once the command has begun to read it
        process.send_signal(signal.SIGINT)
        said = process.communicate()[1]
    assert (process.returncode, said.strip()) == (130, "")
