"""What `make install` and `make uninstall` leave on a machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

TREE = Path(__file__).parents[2]
PLACES = {"PREFIX": "opt/peerwatch", "UNITS": "units", "CONFIG": "etc", "STATE": "state", "CACHE": "cache"}
NO_NETWORK = re.compile(r"Failed to establish a new connection|Temporary failure in name resolution")


class Machine:
    """A copy of the tree, and an empty folder that stands for a machine's root."""

    def __init__(self, folder: Path) -> None:
        self.tree, self.root = folder / "tree", folder / "root"
        shutil.copytree(
            TREE, self.tree, ignore=shutil.ignore_patterns(".*", "tests", "build", "*.egg-info", "__pycache__")
        )
        (self.root / "opt").mkdir(parents=True)

    def make(self, target: str) -> str:
        """The output of `make TARGET`; skips where no package index can be reached."""
        places = [f"{name}={self.root / place}" for name, place in PLACES.items()]
        env = os.environ | {"PIP_NO_COMPILE": "1"}
        done = subprocess.run(
            ["make", "-C", self.tree, target, *places], capture_output=True, text=True, check=False, env=env
        )
        if NO_NETWORK.search(done.stderr):
            pytest.skip("no package index can be reached")
        assert done.returncode == 0, done.stderr
        return done.stdout

    def version(self) -> str:
        """The version that the installed command says of itself."""
        python = self.root / "opt/peerwatch/bin/python"
        code = "import importlib.metadata as m; print(m.version('peerwatch'))"
        return subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=True).stdout.strip()

    def release(self, version: str) -> None:
        """The tree gets another version."""
        project = self.tree / "pyproject.toml"
        project.write_text(
            re.sub(r'^version = ".*"', f'version = "{version}"', project.read_text(), flags=re.MULTILINE)
        )


@pytest.mark.timeout(900)  # pip fetches and unpacks 500 MB
def test_install_upgrade_and_uninstall(tmp_path: Path) -> None:
    """The installed units start; an upgrade keeps configuration and state; uninstalling keeps both and says so."""
    machine = Machine(tmp_path)
    machine.release("7.1")
    machine.make("install")
    assert machine.version() == "7.1"
    assert (machine.root / "opt/peerwatch/share/man/man1/peerwatch-status.1").is_file()
    for unit in (machine.root / "units").iterdir():
        (start,) = re.findall(r"^ExecStart=(.*)$", unit.read_text(), re.MULTILINE)
        subprocess.run([*start.split(), "--help"], stdout=subprocess.DEVNULL, check=True)

    config = machine.root / "etc/peerwatch.toml"
    config.write_text('store = "nats://bus:4222/fleet"\n')
    drop_in = machine.root / "units/peerwatch-agent.service.d/limits.conf"
    for file in (machine.root / "state/peerwatch.db", machine.root / "cache/probes", drop_in):
        file.parent.mkdir()
        file.write_text(file.name)
    (machine.root / "units/peerwatch-detector.service.d").mkdir()
    machine.release("7.2")
    assert "peerwatch-writer" in machine.make("install")
    assert machine.version() == "7.2"
    assert config.read_text() == 'store = "nats://bus:4222/fleet"\n'

    said = machine.make("uninstall")
    kept = {"etc/peerwatch.toml", "state/peerwatch.db", "units/peerwatch-agent.service.d/limits.conf"}
    assert {str(file.relative_to(machine.root)) for file in machine.root.rglob("*") if file.is_file()} == kept
    assert not (machine.root / "units/peerwatch-detector.service.d").exists()
    assert all(str(machine.root / Path(file).parent) in said for file in kept)
