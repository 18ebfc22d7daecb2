"""The installation in an empty Debian root that systemd has booted: two minutes, of which most is apt and pip."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.bench

TREE = Path(__file__).parents[2]
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PACKAGES = "make,ca-certificates,systemd,systemd-sysv,dbus"
# What apt and pip need to know of this machine to reach their indexes.
NETWORK = ("etc/ssl/certs", "usr/local/share/ca-certificates", "etc/pip.conf", "etc/resolv.conf")
SERVICES = ("peerwatch-agent", "peerwatch-detector")


class Booted:
    """A Debian root in a container; commands run inside by nsenter, for machinectl needs a systemd outside too."""

    def __init__(self, root: Path) -> None:
        self.root = root
        boot = ["systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--boot", "--console=read-only"]
        rights = ["--capability=all", "--system-call-filter=bpf perf_event_open", "--bind=/dev/kmsg"]
        with (root.parent / "boot.log").open("wb") as log:
            self._container = subprocess.Popen([*boot, *rights, "-D", root], stdin=subprocess.DEVNULL, stdout=log)
        self.wait_for("systemctl", "is-system-running")

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """The command inside, with the environment of a fresh login."""
        number = self._container.pid
        (first,) = Path(f"/proc/{number}/task/{number}/children").read_text().split() or ["0"]
        order = ["nsenter", "--target", first, "--all", "env", "-i", f"PATH={PATH}", "HOME=/root", *command]
        return subprocess.run(order, capture_output=True, text=True, check=False)

    def say(self, *command: str) -> str:
        """What a command prints that must not fail."""
        done = self.run(*command)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    def wait_for(self, *command: str) -> None:
        """Until the command succeeds, for half a minute."""
        until = time.monotonic() + 30
        while self.run(*command).returncode:
            assert time.monotonic() < until, (command, self.run(*command))
            time.sleep(0.5)

    def close(self) -> None:
        """Power off."""
        self.run("systemctl", "poweroff")
        self._container.wait(30)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Booted]:
    """A booted Debian root that has this tree in /root/peerwatch, and nothing of Peerwatch else."""
    if os.geteuid() or not shutil.which("debootstrap") or not shutil.which("systemd-nspawn"):
        pytest.skip("needs root, and: apt-get install debootstrap systemd-container")
    root = tmp_path / "root"
    subprocess.run(["debootstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", root], check=True)
    for name in NETWORK:
        if (Path("/") / name).exists():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            subprocess.run(["cp", "-aT", Path("/") / name, root / name], check=True)
    left_out = shutil.ignore_patterns(".*", "build", "*.egg-info", "__pycache__")
    shutil.copytree(TREE, root / "root/peerwatch", ignore=left_out)
    booted = Booted(root)
    try:
        yield booted
    finally:
        booted.close()


def test_install_in_a_clean_debian(machine: Booted) -> None:
    """Agent and detector run under systemd, an upgrade starts them again, and uninstalling leaves what it says."""
    begun = time.monotonic()
    machine.say("make", "-C", "/root/peerwatch", "install")
    took = time.monotonic() - begun
    machine.say("systemctl", "enable", "--now", *SERVICES)
    machine.wait_for("peerwatch", "status")
    before = numbers(machine)

    configuration = machine.root / "etc/peerwatch/peerwatch.toml"
    configuration.write_text(configuration.read_text() + "\n# ours\n")
    machine.say("make", "-C", "/root/peerwatch", "install")
    machine.wait_for("peerwatch", "status")
    after = numbers(machine)
    assert all(0 not in (was, now) and was != now for was, now in zip(before, after, strict=True))
    assert configuration.read_text().endswith("# ours\n")

    size = machine.say("du", "-sm", "/opt/peerwatch").split()[0]
    print(f"\ninstalled in a clean Debian 12 in {took:.0f} s; /opt/peerwatch has {size} MB")

    said = machine.say("make", "-C", "/root/peerwatch", "uninstall")
    assert machine.run("systemctl", "is-active", *SERVICES).stdout.split() == ["inactive"] * 2
    left = machine.say("find", "/etc", "/opt", "/usr", "/var", "-xdev", "-name", "*peerwatch*", "-prune").split()
    assert sorted(left) == ["/etc/peerwatch", "/var/lib/peerwatch"]
    assert all(place in said for place in (*left, "userdel peerwatch"))


def numbers(machine: Booted) -> list[int]:
    """The main processes of the services; 0 where one does not run."""
    return [int(machine.say("systemctl", "show", "--value", "-p", "MainPID", name)) for name in SERVICES]
