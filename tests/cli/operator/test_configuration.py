"""Where readings are without a word, what a configuration says, and the pages that are made of it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from cli import config, manual
from cli.main import app
from cli.reference import keys, template
from detector.alerts.registry import AlertsConfig
from store.sqlite.embedded import Embedded
from tests.cli.conftest import SECOND, host, one_line, run

READERS = ("status", "show", "tasks", "ack", "clear", "maintenance", "export", "copy")


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine on which nothing was ever installed, seen by its root."""
    monkeypatch.setattr(config, "STORE", str(tmp_path / "var" / "peerwatch.db"))
    monkeypatch.setattr(config, "PLACE", tmp_path / "peerwatch.toml")
    (tmp_path / "peerwatch.toml").write_text(f'store = "{tmp_path / "var" / "peerwatch.db"}"\n')
    monkeypatch.setattr(config, "UNITS", (tmp_path / "peerwatch-agent.service",))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "mine"))
    monkeypatch.delenv("PEERWATCH_STORE", raising=False)
    return tmp_path


def test_nothing_is_installed(fresh: Path) -> None:
    """A reading command says that Peerwatch is not here, or is but writes nothing, what to do, and makes nothing."""
    done = CliRunner().invoke(app, ["status"])
    assert (done.exit_code, done.stderr.count("\n")) == (3, 1)
    assert "Peerwatch is not installed or not running on this machine" in done.stderr
    assert "start it: peerwatch up" in done.stderr
    (fresh / "peerwatch-agent.service").touch()
    assert "start it: sudo systemctl start peerwatch-agent" in CliRunner().invoke(app, ["show"]).stderr
    assert sorted(path.name for path in fresh.iterdir()) == ["peerwatch-agent.service", "peerwatch.toml"]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_a_user_who_may_not_enter_the_folder(tmp_path: Path) -> None:
    """An ordinary user's `status` says at the default place what it lacks, be there a store or not."""
    folder = tmp_path / "var"
    folder.mkdir(mode=0o750)
    os.chown(folder, 0, 33)  # www-data, which every Debian has
    for above in (tmp_path, *list(tmp_path.parents)[:-1]):
        above.chmod(above.stat().st_mode | 0o055)
    (tmp_path / "peerwatch.toml").write_text(f'store = "{folder / "peerwatch.db"}"\n')
    code = (
        "import os, pathlib, sys; from cli import config, main; config.STORE = sys.argv.pop(1)\n"
        "config.PLACE = pathlib.Path(sys.argv.pop(1))\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534); main.main()"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "XDG_STATE_HOME": str(tmp_path / "mine")}
    words = [sys.executable, "-c", code, str(folder / "peerwatch.db"), str(tmp_path / "peerwatch.toml"), "status"]
    for _ in range(2):
        done = subprocess.run(words, capture_output=True, text=True, env=env, cwd="/", check=False)
        assert (done.returncode, done.stderr.count("\n")) == (3, 1)
        assert "is for members of the group www-data, this user is none: sudo usermod -aG www-data" in done.stderr
        Embedded(folder / "peerwatch.db").close()
    (tmp_path / "mine" / "peerwatch").mkdir(parents=True)
    with closing(Embedded(tmp_path / "mine" / "peerwatch" / "peerwatch.db")) as own:  # of the user's `peerwatch up`
        own.write([host("m27", time.time_ns(), 0.4)])
    (tmp_path / "mine" / "peerwatch" / "peerwatch.db").chmod(0o644)
    done = subprocess.run(words, capture_output=True, text=True, env=env, cwd="/", check=False)
    assert "m27" in done.stdout


@pytest.mark.parametrize(("user", "folder"), [(0, "var"), (1000, "mine/peerwatch")])
def test_a_place_of_ones_own(fresh: Path, monkeypatch: pytest.MonkeyPatch, user: int, folder: str) -> None:
    """A writing command makes the folder, root the usual one, others their own; reading commands then find it."""
    monkeypatch.setattr(os, "geteuid", lambda: user)
    place, settings = config.locate_store(None, None, writing=True)
    assert place == str(fresh / folder / "peerwatch.db")
    config.open_place(place, True, settings).close()
    assert config.locate_store(None)[0] == place
    assert (fresh / folder).stat().st_mode & 0o007 == 0
    config.open_place(place).close()


def test_all_readers_take_a_configuration(tmp_path: Path) -> None:
    """Each of them has --config, and reads the store that it names."""
    for command in READERS:
        assert "--config" in run(command, "--help").stdout
    for command in ("verdict", "startup"):
        assert "--config" in run("report", command, "--help").stdout
    place, file = tmp_path / "s.db", tmp_path / "c.toml"
    store = Embedded(place)
    store.write([host("m41", time.time_ns() - SECOND, 0.4)])
    store.close()
    file.write_text(f'store = "{place}"\n')
    assert "m41" in run("status", "--config", file).stdout
    assert run("maintenance", "m41", "--config", file).returncode == 0
    assert run("export", tmp_path / "r", "--config", file).returncode == 0
    assert "c.toml" in one_line(run("show", "--config", tmp_path / "no" / "c.toml"), 1)


def test_help_names_the_usual_places() -> None:
    """The configuration, the store, and the variable that names another stand in the help."""
    said = " ".join(run("--help", COLUMNS="300").stdout.split())
    for word in ("/etc/peerwatch/peerwatch.toml", "/var/lib/peerwatch/peerwatch.db", "PEERWATCH_STORE"):
        assert word in said
        assert word in run("status", "--help", COLUMNS="500").stdout
    assert "worn_gpu" in run("simulate", "--help", COLUMNS="500").stdout


def test_begin_check_and_show(tmp_path: Path) -> None:
    """The file of `init` is valid and changes nothing; `show` prints what a file changes."""
    file = tmp_path / "new" / "c.toml"
    assert run("config", "init", file).returncode == 0
    assert config.read_settings(file) == config.Settings()
    assert "exists already: use another file or --overwrite" in one_line(run("config", "init", file), 1)
    text = file.read_text().replace("#period_seconds = 1.0", "period_seconds = 2.5").replace("#url = ", "url = ")
    file.write_text(text.replace('url = ""', 'url = "https://hooks.example/T0/S3CR3T"'))
    assert ": ok; store " in run("config", "check", "--config", file).stdout
    shown = run("config", "show", "--config", file).stdout
    assert "period_seconds = 2.5  # changed" in shown.splitlines()
    assert "limit_seconds = 0.8" in shown.splitlines()
    assert "S3CR3T" not in shown + run("config", "show", "--json", "--config", file).stdout
    assert json.loads(run("config", "show", "--json").stdout)["agent"]["scan_seconds"] == "2.0"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("[agent]\nsauces = []\n", "unknown key: sauces"),
        (
            '[influxdb]\ntoken_file = "/nonexistent/t"\n',
            "influxdb.token_file names /nonexistent/t, which does not exist",
        ),
        ('[detector]\ncalibration = "/nonexistent/c"\n', "/nonexistent/c"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, cause: str) -> None:
    """One line names the wrong key or the unreadable file; the exit code is 1."""
    file = tmp_path / "c.toml"
    file.write_text(text)
    assert cause in one_line(run("config", "check", "--config", file), 1)


def test_every_key_has_words() -> None:
    """The template describes each key, and the template with all keys set is a configuration."""
    assert [key.name for found in keys().values() for key in found if not key.words] == []
    settings = msgspec.toml.decode(re.sub(r"^#(?! )", "", template(), flags=re.MULTILINE))
    assert msgspec.convert(settings, config.Settings) == config.Settings()
    assert AlertsConfig().sinks == ("log",)


def test_manual_pages(tmp_path: Path) -> None:
    """Each command has a page with all its options, there is one on the configuration, and groff takes them all."""
    names = {path.name for path in manual.write(tmp_path)}
    assert {"peerwatch.1", "peerwatch.toml.5", "peerwatch-status.1", "peerwatch-alerts-test.1"} <= names
    assert "\\-\\-stale\\-after" in (tmp_path / "man1" / "peerwatch-status.1").read_text()
    assert "period_seconds" in (tmp_path / "man5" / "peerwatch.toml.5").read_text()
    for path in tmp_path.glob("man*/*"):
        assert path.read_text().isascii()
        try:
            done = subprocess.run(["groff", "-man", "-ww", "-z", path], capture_output=True, text=True, check=True)
        except FileNotFoundError:
            pytest.skip("groff is not here")
        assert done.stderr == ""


def test_the_signing_key_is_the_configured_one_else_the_credential(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A named file comes first, then systemd's credential, then the file beside the store, which is made."""
    store = str(tmp_path / "fleet.db")
    for name, sign in (("named", "3"), ("signing-key", "7")):
        (tmp_path / name).write_text(sign * 64)
    made = config.signing_key(store, config.Settings(), True)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    handed = config.signing_key(store, config.Settings(), True)
    named = config.signing_key(store, config.Settings(signing_key_file=str(tmp_path / "named")), True)
    assert (named, handed) == (b"3" * 64, b"7" * 64)
    assert made == (tmp_path / "fleet.key").read_bytes().strip()
