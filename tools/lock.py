"""Writes requirements.lock: the Python packages of an installation, each with its version and the hash of its file.

python tools/lock.py      asks the package index, so it needs a network; made for Debian 12: CPython 3.11, x86-64

The sections are those of the .deb packages: what agent and detector both need, what each needs alone, and what builds.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HEAD = """# Made by `python tools/lock.py` for CPython 3.11 on x86-64 Linux (Debian 12); do not edit.
# pip install --require-hashes --no-index --find-links wheels -r requirements.lock
"""
READING = ("pyarrow==", "msgpack==")
"""By these a store is read, which `peerwatch doctor` and `status` do on every machine."""
Locked = dict[str, str]
"""Name==version -> sha256 of the file."""


def resolved(*wanted: str) -> Locked:
    """What pip would install for these requirements in an empty environment. Raises CalledProcessError."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report", "-"]
    command += ["--only-binary", ":all:", *wanted]
    report = json.loads(subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout)
    found = {}
    for one in report["install"]:
        archive = one["download_info"].get("archive_info")
        if archive:  # Peerwatch itself is a folder
            found[f"{one['metadata']['name']}=={one['metadata']['version']}"] = archive["hashes"]["sha256"]
    return found


def sections() -> dict[str, Locked]:
    """Section -> its packages; none is in two sections."""
    agent, detector = resolved(".[agent]"), resolved(".[detector]")
    common = resolved(".[nats]") | {name: digest for name, digest in agent.items() if name in detector}
    common |= {name: digest for name, digest in detector.items() if name.startswith(READING)}
    return {
        "common": common,
        "agent": {name: digest for name, digest in agent.items() if name not in common},
        "detector": {name: digest for name, digest in detector.items() if name not in common},
        "build": resolved("setuptools>=68"),
    }


def main() -> None:
    """Write the file."""
    text = HEAD
    for section, found in sections().items():
        text += f"\n## {section}\n"
        for name in sorted(found, key=str.lower):
            text += f"{name} \\\n    --hash=sha256:{found[name]}\n"
    (ROOT / "requirements.lock").write_text(text)


if __name__ == "__main__":
    main()
