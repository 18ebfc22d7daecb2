"""A sink's ledger: what it was told and how that went, in a file, so that a new detector repeats nothing."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from detector.model.verdict import Level

log = logging.getLogger(__name__)


class DeliveryLog(msgspec.Struct):
    """Counts over the life of the file, and of the open incidents what the sink knows."""

    delivered: int = 0
    failed: int = 0
    """Calls that failed, also those that were tried again with success."""
    refused: int = 0
    """Alerts that the sink will never pass on."""
    dropped: int = 0
    """Alerts that were too many to wait."""
    hung: int = 0
    """Calls that did not return for minutes."""
    error: str = ""
    """Why the last call failed; empty after one that did not."""
    told: dict[str, tuple[Level, int]] = msgspec.field(default_factory=dict)
    """Incident -> the level it was told at, and when (Unix ns)."""

    def level(self, incident: str) -> Level | None:
        """The level at which the incident was told; None where it was not."""
        return self.told[incident][0] if incident in self.told else None

    def packed(self) -> bytes:
        """The ledger as its file holds it."""
        return msgspec.json.encode(self)


def read_delivery_log(file: Path) -> DeliveryLog | None:
    """The ledger in this file; None where there is none that can be read."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=DeliveryLog)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        log.warning("%s cannot be read and is begun anew: %s", file, str(error).splitlines()[0])
        return None


def write_delivery_log(file: Path, words: bytes) -> None:
    """Replace the file as a whole by a packed ledger. Raises OSError."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
    new = file.with_suffix(".new")
    new.write_bytes(words)
    new.replace(file)
