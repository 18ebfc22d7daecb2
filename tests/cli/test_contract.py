"""What every command must do: help, one line for an error, JSON, plain terminals, names from outside as they are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from cli.config import PLACE
from cli.main import app
from tests.cli.conftest import ROOT, one_line, run


def commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command that is no group, with the words that call it."""
    below = getattr(command, "commands", {})
    if not below:
        yield words, command
    for word, inner in below.items():
        yield from commands(inner, (*words, word))


ALL = dict(commands(typer.main.get_command(app)))
READERS = {
    words: command
    for words, command in ALL.items()
    if words[0] in ("status", "show", "tasks", "report") and any(param.name == "store" for param in command.params)
}
"""Commands that read a store and write nothing to it."""
NEEDED = {
    ("report", "verdict"): ("1", "--html", "page.html"),
    ("placement",): ("--topology", "network.toml"),
    ("config", "zoom-key"): ("m1",),
}
"""Arguments without which a command does not begin."""
JSON = (("status",), ("show",), ("config", "show"), ("alerts", "show"))
"""Commands with --json that any store with readings answers."""
RENAMED = (("status", "--silent", "30s"), ("train", "/nowhere/model.json"), ("clear", "m77"))


def name(words: tuple[str, ...]) -> str:
    """A test's name."""
    return " ".join(words)


@pytest.mark.parametrize("words", ALL, ids=name)
def test_help_names_every_option(words: tuple[str, ...]) -> None:
    """`--help` exits with 0, has a sentence, and lists each option that is not hidden with an explanation."""
    done = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "200", "TERM": "dumb"})
    assert done.exit_code == 0
    assert ALL[words].help
    for option in (param for param in ALL[words].params if not getattr(param, "hidden", False)):
        assert option.param_type_name == "argument" or option.opts[0] in done.output
        assert getattr(option, "help", None), option.name


def test_help_says_where_the_configuration_is() -> None:
    """Every --config names the file that is read without it."""
    options = {words: param for words, command in ALL.items() for param in command.params if param.name == "config"}
    assert len(options) > 20
    assert [name(words) for words, option in options.items() if str(PLACE) not in (option.help or "")] == []


@pytest.mark.parametrize("words", ALL, ids=name)
def test_an_unknown_option_is_an_error(words: tuple[str, ...]) -> None:
    """An option that does not exist is refused without a traceback."""
    done = CliRunner().invoke(app, [*words, "--no-such-option"])
    assert done.exit_code in (2, 3)
    assert "Traceback" not in done.output


@pytest.mark.parametrize("words", READERS, ids=name)
def test_a_wrong_store_is_one_line(words: tuple[str, ...], tmp_path: Path) -> None:
    """A store that does not exist is one line on standard error and a non-zero exit code."""
    code = 3 if words == ("status",) else 1
    error = one_line(run(*words, *NEEDED.get(words, ()), "--store", tmp_path / "none.db"), code)
    assert "none.db" in error


@pytest.mark.parametrize(
    "words", [words for words, command in ALL.items() if any(p.name == "config" for p in command.params)], ids=name
)
def test_a_wrong_configuration_is_one_line(words: tuple[str, ...], tmp_path: Path) -> None:
    """A configuration with an unknown key is one line with the key and a non-zero exit code."""
    wrong = tmp_path / "peerwatch.toml"
    wrong.write_text("[agent]\nnonsense = 4\n")
    known = {"copy": ("a.db", "b.db")} | {one: (str(tmp_path),) for one in ("calibrate", "evaluate", "replay")}
    known |= {"export": (str(tmp_path / "out"),), "ack": ("m1",), "clear": ("m1",)}
    given = NEEDED.get(words, known.get(words[0], ()))
    done = run(*words, *given, "--config", wrong)
    assert done.returncode != 0
    assert "nonsense" in done.stderr
    assert "Traceback" not in done.stderr
    assert len([line for line in done.stderr.splitlines() if "deprecated" not in line]) == 1


@pytest.mark.parametrize("words", JSON, ids=name)
def test_json_is_one_document(words: tuple[str, ...], place: Path) -> None:
    """`--json` prints one valid JSON document and nothing else."""
    store = () if words[0] == "config" else ("--store", place)
    json.loads(run(*words, "--json", *store).stdout)


@pytest.mark.parametrize("words", [("status",), ("show",)], ids=name)
def test_a_plain_terminal_of_80_columns(words: tuple[str, ...], place: Path) -> None:
    """An ASCII terminal of 80 columns gets plain text, and lines that fit it."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80", "PYTHONIOENCODING": "ascii", "NO_COLOR": "1"}
    command = [sys.executable, "-m", "cli.main", *words, "--store", str(place)]
    done = subprocess.run(command, capture_output=True, encoding="ascii", env=env, check=False)
    assert done.returncode == 0
    assert "codec" not in done.stderr


def test_a_machine_is_never_seen_as_markup(tmp_path: Path) -> None:
    """Square brackets in a machine's name are printed as they are."""
    done = run("maintenance", "[bold]m1[/bold]", "--store", tmp_path / "none.db", "--for", "1h")
    assert "[bold]m1" in done.stderr or "none.db" in done.stderr


@pytest.mark.parametrize("words", RENAMED, ids=name)
def test_old_names_say_the_new_one(words: tuple[str, ...], place: Path) -> None:
    """A deprecated command or option works and names its replacement on standard error."""
    store = () if words[0] == "train" else ("--store", place)
    assert "is deprecated: use" in run(*words, *store).stderr
