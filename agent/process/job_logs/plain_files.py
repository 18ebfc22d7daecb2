"""Files of jobs: opened without following any link, read in bounded pieces, newest first where a pattern fits several.

They belong to the users who are watched. A link in place of a log would have the agent read what its owner may not, so
no part of a path may be one, and the reading thread gives up the right to read every file (agent/system/rights.py).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import PurePosixPath
from typing import Literal

Place = Literal["follows", "begins", "gap"]
PIECE = 256 << 10
"""Most bytes that are read of a file at a time."""
_ENTRIES = 4096
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


@contextmanager
def opened_folder(folder: PurePosixPath) -> Iterator[int]:
    """A descriptor of the folder. Raises OSError, also for a link in any part of its path."""
    at = os.open("/", _FOLDER)
    try:
        for part in folder.parts[1:]:
            below = os.open(part, _FOLDER, dir_fd=at)
            os.close(at)
            at = below
        yield at
    except NotADirectoryError as error:
        raise OSError(error.errno, "a link, or no folder: name the real path, without links", str(folder)) from error
    finally:
        os.close(at)


def newest(pattern: str) -> tuple[str, os.stat_result] | None:
    """Name and state of the file or folder that fits the pattern in the last part of a path and was changed last.

    Links do not count; of a large folder 4,096 entries are looked at. None where nothing fits. Raises OSError.
    """
    path = PurePosixPath(pattern)
    found: tuple[str, os.stat_result] | None = None
    with opened_folder(path.parent) as folder:
        reading = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
        try:
            with os.scandir(reading) as entries:
                for entry in islice(entries, _ENTRIES):
                    if fnmatchcase(entry.name, path.name) and not entry.is_symlink():
                        state = os.stat(entry.name, dir_fd=folder, follow_symlinks=False)
                        if found is None or state.st_mtime > found[1].st_mtime:
                            found = entry.name, state
        finally:
            os.close(reading)
    return found


class Follower:
    """What is added to the newest file that fits a pattern. `from_end` begins near the end of the first one."""

    def __init__(self, pattern: str, from_end: bool) -> None:
        self._pattern, self._from_end = pattern, from_end
        self._file: tuple[int, int] | None = None
        self._offset = 0
        self.skipped = 0
        """Bytes left out because more came than is read."""

    def read(self) -> tuple[bytes, Place]:
        """New bytes, PIECE at most, and whether they follow the last ones, begin a file, or come after a gap.

        Raises OSError.
        """
        found = newest(self._pattern)
        if found is None:
            raise FileNotFoundError(2, "no file fits", self._pattern)
        path = PurePosixPath(self._pattern)
        with opened_folder(path.parent) as folder:
            file = os.open(found[0], _FILE, dir_fd=folder)
        try:
            state = os.fstat(file)
            if not stat.S_ISREG(state.st_mode):
                raise OSError(22, "is no plain file", str(path.with_name(found[0])))
            place = self._place(state)
            chunk = os.pread(file, PIECE, self._offset)
            self._offset += len(chunk)
            return chunk, place
        finally:
            os.close(file)

    def _place(self, state: os.stat_result) -> Place:
        """Set the offset for this reading."""
        first, identity = self._file is None, (state.st_dev, state.st_ino)
        follows = identity == self._file and state.st_size >= self._offset
        if not follows:
            self._file, self._offset = identity, 0
        behind = state.st_size - self._offset - PIECE
        if self._from_end and behind > 0:  # a log: what is now counts
            self.skipped += 0 if first else behind
            self._offset += behind
            return "gap"
        return "follows" if follows else "begins"
