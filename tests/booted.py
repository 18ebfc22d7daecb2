"""An empty Debian root that systemd has booted, for what has to be installed to be tried."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

TREE = Path(__file__).parents[1]
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PACKAGES = "systemd,systemd-sysv,dbus"
"""What makes an empty root bootable; all else is the page's to install."""
# What apt and pip need to know of this machine to reach their indexes.
NETWORK = ("etc/ssl/certs", "usr/local/share/ca-certificates", "etc/pip.conf", "etc/resolv.conf")


class Booted:
    """A Debian root in a container; commands run inside by nsenter, for machinectl needs a systemd outside too."""

    def __init__(self, root: Path) -> None:
        self.root = root
        boot = ["systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--boot", "--console=read-only"]
        rights = ["--capability=all", "--system-call-filter=bpf perf_event_open", "--bind=/dev/kmsg"]
        with (root.parent / "boot.log").open("wb") as log:
            self._container = subprocess.Popen([*boot, *rights, "-D", root], stdin=subprocess.DEVNULL, stdout=log)
        try:
            self.wait_for("systemctl", "is-system-running")
        except BaseException:
            self.close()
            raise

    def command(self, *command: str) -> list[str]:
        """A command line that runs the command inside, with the environment of a fresh login."""
        number = self._container.pid
        (first,) = Path(f"/proc/{number}/task/{number}/children").read_text().split() or ["0"]
        return ["nsenter", "--target", first, "--all", "env", "-i", f"PATH={PATH}", "HOME=/root", *command]

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run the command inside."""
        return subprocess.run(
            self.command(*command), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )

    def say(self, *command: str) -> str:
        """What a command prints that must not fail."""
        done = self.run(*command)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    def wait_for(self, *command: str, seconds: float = 30) -> None:
        """Until the command succeeds."""
        until = time.monotonic() + seconds
        while self.run(*command).returncode:
            assert time.monotonic() < until, (command, self.run(*command))
            time.sleep(0.5)

    def show(self, service: str, name: str) -> str:
        """One property of a unit."""
        return self.say("systemctl", "show", "--value", "-p", name, service).strip()

    def number(self, service: str) -> int:
        """The main process of a service; 0 while it does not run."""
        return int(self.show(service, "MainPID"))

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
    left_out = shutil.ignore_patterns(".*", "build", "dist", "wheels", "*.egg-info", "__pycache__")
    shutil.copytree(TREE, root / "root/peerwatch", ignore=left_out)
    booted = Booted(root)
    try:
        yield booted
    finally:
        booted.close()
