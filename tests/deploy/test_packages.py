"""The Debian packages as far as they can be built without the wheels, and the lock that they are built from."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from importlib.metadata import metadata, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools import packages
from tools.packages import PACKAGES, Package

ROOT = Path(__file__).parents[2]
LOCK = (ROOT / "requirements.lock").read_text()


def locked() -> dict[str, dict[str, str]]:
    """Section of the lock -> package -> version."""
    parts = re.split(r"^## (\w+)\n", LOCK, flags=re.MULTILINE)[1:]
    pairs = zip(parts[::2], parts[1::2], strict=True)
    found = {name: re.findall(r"^(\S+)==(\S+) \\\n    --hash=sha256:[0-9a-f]{64}$", text, re.MULTILINE)
             for name, text in pairs}  # fmt: skip
    return {name: {canonicalize_name(package): version for package, version in rows} for name, rows in found.items()}


def test_the_lock_has_one_version_and_a_hash_of_everything() -> None:
    """Each line that names a package is followed by its hash, and none stands in two sections."""
    sections = locked()
    assert list(sections) == ["common", "agent", "detector", "build"]
    names = [name for found in sections.values() for name in found]
    assert len(names) == len(set(names)) == len(re.findall(r"^\S+==", LOCK, re.MULTILINE))


@pytest.mark.parametrize(("extra", "where"), [("agent", "agent"), ("detector", "detector"), ("nats", "agent")])
def test_the_lock_answers_pyproject(extra: str, where: str) -> None:
    """What pyproject.toml asks for is locked, in a section that the package has, at a version that it accepts."""
    sections = locked()
    there = sections["common"] | sections[where]
    for text in requires("peerwatch") or ():
        wanted = Requirement(text)
        if wanted.marker is None or wanted.marker.evaluate({"extra": extra}):
            assert wanted.specifier.contains(there[canonicalize_name(wanted.name)]), text


def test_the_version_comes_from_one_place() -> None:
    """The packages have pyproject.toml's version, as the command has; before its release notes it sorts lower."""
    assert packages.version().removesuffix("~unreleased") == metadata("peerwatch")["Version"]
    written = f"## [{metadata('peerwatch')['Version']}]" in (ROOT / "CHANGELOG.md").read_text()
    assert packages.version().endswith("~unreleased") is not written


@pytest.fixture(scope="module", params=PACKAGES, ids=lambda package: package.name)
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Package, Path]:
    """A package without its Python packages, and the folder that dpkg unpacks it into, control files included."""
    if shutil.which("dpkg-deb") is None:
        pytest.skip("there is no dpkg-deb")
    package: Package = request.param
    root = tmp_path_factory.mktemp(package.name) / "root"
    if package.section == "common":
        packages.furnish(root)
    packages.finish(root, package, "7.1")
    file = root.parent / "x.deb"
    subprocess.run(["dpkg-deb", "--root-owner-group", "--build", root, file], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["dpkg-deb", "--raw-extract", file, root.parent / "out"], check=True)
    return package, root.parent / "out"


def test_fields(built: tuple[Package, Path]) -> None:
    """Agent and detector need exactly their common package; the configuration is a conffile of that one alone."""
    package, root = built
    control = (root / "DEBIAN/control").read_text()
    assert f"Package: {package.name}\nVersion: 7.1\n" in control
    common = package.section == "common"
    assert ("peerwatch-common (= 7.1)" in control) is not common
    assert ("python3-bpfcc" in control) is (package.section == "agent")
    conffiles = root / "DEBIAN/conffiles"
    assert (conffiles.read_text() if conffiles.exists() else "") == "/etc/peerwatch/peerwatch.toml\n" * common
    assert (root / "etc/peerwatch/peerwatch.toml").exists() is common


def test_units_start_what_the_packages_hold(built: tuple[Package, Path]) -> None:
    """Units name the interpreter of the package, not that of `make install`, and lie where packages put theirs."""
    package, root = built
    units = sorted(file.name for file in root.glob("lib/systemd/system/*"))
    assert units == sorted(package.units)
    for name in units:
        text = (root / "lib/systemd/system" / name).read_text()
        assert "\nExecStart=/usr/lib/peerwatch/bin/python -I -m cli.main " in text
        assert "/opt/" not in text


def test_scripts_are_sound(built: tuple[Package, Path]) -> None:
    """The shell accepts every maintainer script, no placeholder is left, and purge removes the package's own state."""
    package, root = built
    scripts = [root / "DEBIAN" / name for name in ("postinst", "prerm", "postrm") if (root / "DEBIAN" / name).exists()]
    for script in scripts:
        subprocess.run(["sh", "-n", script], check=True)
        assert os.access(script, os.X_OK)
        assert "@" not in script.read_text()
    purge = (root / "DEBIAN/postrm").read_text().split("purge", 1)[1]
    assert "/var/lib/peerwatch" in purge
    assert all(place in purge for place in package.state.split())


def test_setting_up_twice_makes_one_user(tmp_path: Path) -> None:
    """The script of the common package makes the user where there is none, and then no more."""
    calls = tmp_path / "calls"
    for name, text in (
        ("getent", f'grep -q adduser "{calls}" 2>/dev/null'),
        ("adduser", f'echo adduser "$@" >>"{calls}"'),
    ):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    for _ in range(2):
        script = ROOT / "deploy/debian/common.postinst"
        path = f"{tmp_path}:{os.environ['PATH']}"
        subprocess.run(["sh", script, "configure", ""], check=True, env={"PATH": path})
    (call,) = calls.read_text().splitlines()
    assert "--no-create-home" in call
