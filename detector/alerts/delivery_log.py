"""The delivery log of a sink, a file: counts, and the open incidents it knows, so that a restart repeats nothing."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from detector.model.verdict import Level

log = logging.getLogger(__name__)


class DeliveryLog(msgspec.Struct, rename={"reported": "told"}):
    """Counts since the file was created, and the level at which each open incident was reported."""

    delivered: int = 0
    failed: int = 0
    """Failed calls, including those that succeeded on a later attempt."""
    refused: int = 0
    """Alerts that the sink will never deliver."""
    dropped: int = 0
    """Alerts that exceeded the queue."""
    hung: int = 0
    """Calls that did not return within HANG_NS."""
    error: str = ""
    """Why the last call failed; empty after a success."""
    reported: dict[str, tuple[Level, int]] = msgspec.field(default_factory=dict)
    """Incident -> the level at which it was reported, and when (Unix ns)."""

    def level(self, incident: str) -> Level | None:
        """The level at which the incident was reported; None if it was not."""
        return self.reported[incident][0] if incident in self.reported else None

    def packed(self) -> bytes:
        """The content of the file."""
        return msgspec.json.encode(self)


def read_delivery_log(file: Path) -> DeliveryLog | None:
    """The delivery log in this file; None where none can be read."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=DeliveryLog)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        log.warning("%s cannot be read, so it is replaced: %s", file, str(error).splitlines()[0])
        return None


def write_delivery_log(file: Path, words: bytes) -> None:
    """Replace the file atomically by a packed delivery log. Raises OSError."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
    new = file.with_suffix(".new")
    new.write_bytes(words)
    new.replace(file)
