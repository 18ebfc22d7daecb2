"""The installation in an empty Debian root that systemd has booted: most of its minutes are apt's, pip's and dpkg's."""

from __future__ import annotations

import re
import time

import pytest

from tests.booted import TREE, Booted

pytestmark = pytest.mark.bench

SERVICES = ("peerwatch-agent", "peerwatch-detector")


def blocks() -> list[str]:
    """The blocks of docs/install.md that are marked as commands, in order."""
    return re.findall(r"^```sh\n(.*?)^```$", (TREE / "docs/install.md").read_text(), re.MULTILINE | re.DOTALL)


def test_the_page_leads_to_an_alert(machine: Booted) -> None:
    """Who types what docs/install.md says gets packages, services, an alert, an upgrade, and an empty machine again."""
    said = []
    for block in blocks():
        begun, script = time.monotonic(), f"set -e\ncd /root/peerwatch\nexport DEBIAN_FRONTEND=noninteractive\n{block}"
        said.append(machine.say("bash", "-c", script))
        print(f"\n{time.monotonic() - begun:.0f} s: {block.splitlines()[0]} …")
        if "emulator.cluster.fleet" in block:
            survives_kills(machine)
    alert = next(text for text in said if "ended without leaving" in text)
    assert "crit" in alert
    assert "software: a process of the task ended" in alert
    left = machine.say("find", "/etc", "/opt", "/usr", "/var", "-xdev", "-name", "*peerwatch*", "-prune").split()
    assert left == []
    assert machine.run("id", "peerwatch").returncode != 0


def survives_kills(machine: Booted) -> None:
    """Killed and hung services run again, and the detector still knows the incident."""
    for service in SERVICES:
        was = machine.number(service)
        machine.say("systemctl", "kill", "--kill-whom=main", "--signal=KILL", service)
        is_another = f"n=$(systemctl show -P MainPID {service}); test $n -gt 0 -a $n -ne {was}"
        machine.wait_for("bash", "-c", is_another)
        machine.wait_for("systemctl", "is-active", service)
    for service in SERVICES:
        folder = f"/run/systemd/system/{service}.service.d"
        words = "[Service]\\nWatchdogSec=4\\nTimeoutAbortSec=2\\n"
        machine.say("bash", "-c", f"mkdir -p {folder}; printf '{words}' > {folder}/quick.conf; systemctl daemon-reload")
        machine.say("systemctl", "restart", service)
        time.sleep(6)  # longer than the watchdog: one that is fed lives
        assert machine.show(service, "NRestarts") == "0"
        machine.say("systemctl", "kill", "--kill-whom=main", "--signal=STOP", service)
        machine.wait_for("bash", "-c", f"test $(systemctl show -P NRestarts {service}) -gt 0", seconds=40)
        machine.wait_for("systemctl", "is-active", service)
        assert "watchdog timeout" in machine.say("journalctl", "--no-pager", "-u", service).lower()
        machine.say("bash", "-c", f"rm -r {folder}; systemctl daemon-reload; systemctl restart {service}")
    assert "ended without leaving" in machine.say("peerwatch", "show", "1")


def test_install_in_a_clean_debian(machine: Booted) -> None:
    """`make install`: agent and detector run, an upgrade starts them again, and uninstalling leaves what it says."""
    machine.say("bash", "-c", "apt-get update -qq && apt-get install -y -qq make ca-certificates")
    begun = time.monotonic()
    machine.say("make", "-C", "/root/peerwatch", "install")
    took = time.monotonic() - begun
    machine.say("systemctl", "enable", "--now", *SERVICES)
    machine.wait_for("peerwatch", "status")
    # The unit's MemoryDenyWriteExecute lets the agent map the code that it measures the cost of a hit with.
    machine.wait_for("bash", "-c", "peerwatch doctor --json | grep -q 'measured at the start'", seconds=90)
    before = [machine.number(name) for name in SERVICES]

    configuration = machine.root / "etc/peerwatch/peerwatch.toml"
    configuration.write_text(configuration.read_text() + "\n# ours\n")
    machine.say("make", "-C", "/root/peerwatch", "install")
    machine.wait_for("peerwatch", "status")
    after = [machine.number(name) for name in SERVICES]
    assert all(0 not in (was, now) and was != now for was, now in zip(before, after, strict=True))
    assert configuration.read_text().endswith("# ours\n")

    size = machine.say("du", "-sm", "/opt/peerwatch").split()[0]
    print(f"\ninstalled in a clean Debian 12 in {took:.0f} s; /opt/peerwatch has {size} MB")

    said = machine.say("make", "-C", "/root/peerwatch", "uninstall")
    assert machine.run("systemctl", "is-active", *SERVICES).stdout.split() == ["inactive"] * 2
    left = machine.say("find", "/etc", "/opt", "/usr", "/var", "-xdev", "-name", "*peerwatch*", "-prune").split()
    assert sorted(left) == ["/etc/peerwatch", "/var/lib/peerwatch"]
    assert all(place in said for place in (*left, "userdel peerwatch"))
