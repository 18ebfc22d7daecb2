"""Remedies: the command that removes a reason for which a source or probe is blocked."""

from __future__ import annotations

import sys

_REMEDIES = (
    ("python3-bpfcc", "apt-get install python3-bpfcc"),
    ("another project", "pip uninstall bcc && apt-get install python3-bpfcc"),
    ("linux-libc-dev", "apt-get install linux-libc-dev"),
    ("run as root", "sudo systemctl start peerwatch-agent, or sudo peerwatch up"),
    ("stripped, or static", "use a libnccl that exports its functions, such as NVIDIA's wheel or package"),
    ("py-spy is not installed", f"{sys.executable} -m pip install py-spy"),
    ("Permission Denied", "sudo systemctl start peerwatch-agent, or sudo peerwatch up"),
    ("CONFIG_DEBUG_INFO_BTF", "boot a kernel that was built with it, such as the distribution's own"),
    ("replaced on disk", "run with CAP_CHECKPOINT_RESTORE, or restart the training process"),
)
"""A part of the reason, as the agent writes it, and the remedy."""


def remedy(reason: str) -> str:
    """The remedy for a reason; empty where none is known."""
    return next((command for part, command in _REMEDIES if part in reason), "")
