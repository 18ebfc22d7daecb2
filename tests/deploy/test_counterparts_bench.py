"""Image and role as buildah and Ansible themselves carry them out, in a Debian root that systemd has booted."""

from __future__ import annotations

import re
import time

import pytest

from tests.booted import Booted

pytestmark = pytest.mark.bench

TOOLS = "make ca-certificates ansible-core buildah"
INVENTORY = "[training]\nhere ansible_connection=local\n[detector]\nhere ansible_connection=local\n"
SETTINGS = (
    "peerwatch_config: |\n  [agent]\n  probe_share = {}\npeerwatch_secrets: {{webhook-url: http://127.0.0.1:9/x}}\n"
)
PLAY = "ansible-playbook -i /root/inventory -e ansible_become=false -e @/root/settings.yml deploy/ansible/playbook.yml"
HEAD = """set -e
cd /root/peerwatch
export DEBIAN_FRONTEND=noninteractive STORAGE_DRIVER=vfs BUILDAH_ISOLATION=chroot
"""
BASE = """
tar -C / --one-file-system --exclude=./root --exclude=./var/lib/containers --exclude=./tmp -cf /tmp/base.tar .
empty=$(buildah from scratch)
buildah add -q "$empty" /tmp/base.tar /
buildah commit -q "$empty" docker.io/library/debian:12-slim
"""
"""The image that the Containerfile begins with, made of this root: no registry is asked."""


def typed(machine: Booted, script: str) -> str:
    """What a shell prints in the tree; a command that fails ends it."""
    begun = time.monotonic()
    said = machine.say("bash", "-c", HEAD + script)
    print(f"\n{time.monotonic() - begun:.0f} s: {script.strip().splitlines()[-1][:90]}")
    return said


def changes(said: str) -> int:
    """How many tasks of a playbook have changed something; none may have failed."""
    (found,) = re.findall(r"ok=\d+ +changed=(\d+) +unreachable=0 +failed=0", said)
    return int(found)


def test_image_and_role(machine: Booted) -> None:
    """The image runs each program as its own user; the role installs both services, changes nothing twice, restarts."""
    typed(machine, f"apt-get update -qq && apt-get install -y -qq {TOOLS} && make wheels packages")
    typed(machine, BASE)
    typed(machine, "buildah bud --pull-never -q -f deploy/Containerfile -t peerwatch .")
    inside = "buildah run $(buildah from --pull-never localhost/peerwatch) --"
    assert typed(machine, f"{inside} id -un").strip() == "peerwatch"
    for command in ("--version", "agent --help", "detector --help", "writer --help", "config check"):
        assert typed(machine, f"{inside} peerwatch {command}")

    (machine.root / "root/inventory").write_text(INVENTORY)
    for share, least in ((0.02, 9), (0.02, 0), (0.03, 1)):
        (machine.root / "root/settings.yml").write_text(SETTINGS.format(share))
        before = [machine.number(f"peerwatch-{name}") for name in ("agent", "detector")]
        changed = changes(typed(machine, PLAY))
        after = [machine.number(f"peerwatch-{name}") for name in ("agent", "detector")]
        assert all(after)
        assert (changed > 0) == (least > 0)
        assert all((was != now) == (least > 0) for was, now in zip(before, after, strict=True))
        assert changed >= least
    typed(machine, "peerwatch config check && peerwatch status || test $? -eq 3")
