"""An emulated machine's kernel log: records as /dev/kmsg gives them (Documentation/ABI/testing/dev-kmsg), in a file."""

from __future__ import annotations

import os
import time
from pathlib import Path

ERROR, WARNING, INFO = 3, 4, 6


class KernelMessages:
    """Appends records to <root>/dev/kmsg."""

    def __init__(self, root: Path) -> None:
        self.path = root / "dev/kmsg"
        self.path.parent.mkdir(exist_ok=True)
        self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._sequence = 0
        self.say(INFO, "Linux version of an emulated machine")

    def say(self, level: int, text: str) -> None:
        """One record, in one write: priority, sequence, microseconds, flags; text."""
        os.write(self._file, f"{level},{self._sequence},{time.monotonic_ns() // 1000},-;{text}\n".encode())
        self._sequence += 1

    def close(self) -> None:
        """Remove the file."""
        os.close(self._file)
        self.path.unlink(missing_ok=True)
        self.path.parent.rmdir()
