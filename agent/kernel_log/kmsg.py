"""The kernel log as a stream of records, from now on (Documentation/ABI/testing/dev-kmsg).

A real /dev/kmsg gives one record a read, and says EPIPE once records were overwritten before they were read. A file
or a FIFO that stands in for it holds records a line.
"""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path

RECORD_BYTES = 8192
"""Longer than any record that the kernel gives (CONSOLE_EXT_LOG_MAX)."""
_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class Record:
    """One message of the kernel."""

    level: int
    """0 emergency to 7 debug."""
    sequence: int
    continues: bool
    """A fragment: more of the line is in the next record."""
    text: str


def parse(line: bytes) -> Record | None:
    """One record, `priority,sequence,microseconds,flags[,…];text`; None if it is no message of the kernel itself.

    Whatever a program writes to /dev/kmsg has a facility of its own, which is how forged messages are known.
    """
    head, found, text = line.partition(b";")
    fields = head.split(b",", 4)
    if not found or len(fields) < 4 or not (fields[0].isdigit() and fields[1].isdigit()) or len(head) > 128:
        return None
    priority = int(fields[0])
    if priority > 7:
        return None
    # What follows a line feed is a dictionary; a line feed of the message itself is escaped.
    words = text[:RECORD_BYTES].partition(b"\n")[0].replace(b"\\x0a", b" ")
    return Record(priority, int(fields[1]), fields[3][:1] in (b"c", b"+"), words.decode("ascii", "replace"))


class Log:
    """An open kernel log. Raises OSError at opening where it is not there or may not be read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        kind = os.fstat(self._file)
        self._device = stat.S_ISCHR(kind.st_mode)
        self._identity = (kind.st_dev, kind.st_ino)
        self._waiting: list[bytes] = []
        self._rest = b""
        self._sequence: int | None = None
        self._overrun = False
        self.lost = 0
        """Messages that were overwritten before they could be read."""
        self._regular = stat.S_ISREG(kind.st_mode)
        if self._device or self._regular:
            os.lseek(self._file, 0, os.SEEK_END)

    def read(self, limit: int) -> list[Record]:
        """The next records, `limit` at most; what is left comes next time."""
        return self._records(limit) if self._device else self._lines(limit)

    def close(self) -> None:
        """Close the file, once: a closed number is soon another file's."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _records(self, limit: int) -> list[Record]:
        found: list[Record] = []
        for _ in range(limit):
            try:
                line = os.read(self._file, RECORD_BYTES)
            except BlockingIOError:
                break
            except BrokenPipeError:  # the next read gives the oldest record that is still there
                self._overrun = True
                continue
            if not line:
                break
            self._count(line)
            record = parse(line)
            if record is not None:
                found.append(record)
        return found

    def _count(self, line: bytes) -> None:
        """Follow the sequence numbers: a gap behind an overrun is what was lost."""
        number = line[:64].split(b",", 2)[1:2]
        if not number or not number[0].isdigit():
            return
        sequence = int(number[0])
        if self._overrun:
            self._overrun = False
            self.lost += 1 if self._sequence is None else max(sequence - self._sequence - 1, 0)
        self._sequence = sequence

    def _lines(self, limit: int) -> list[Record]:
        self._follow()
        while len(self._waiting) < limit and self._more():
            pass
        lines, self._waiting = self._waiting[:limit], self._waiting[limit:]
        return [record for record in map(parse, lines) if record is not None]

    def _more(self) -> bool:
        try:
            chunk = os.read(self._file, _CHUNK)
        except BlockingIOError:
            return False
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        self._waiting += lines
        if len(self._rest) > _CHUNK:  # a line without end
            self._rest = b""
            self.lost += 1
        return bool(chunk)

    def _follow(self) -> None:
        """Of a file: begin again where another took its place, or where it was truncated."""
        if not self._regular:
            return
        with contextlib.suppress(FileNotFoundError):  # it is being replaced: until then the old one is read
            now = os.stat(self._path)
            if (now.st_dev, now.st_ino) != self._identity:
                fresh = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                os.close(self._file)  # only now: it may have gone again, and a closed number is soon another file's
                self._file = fresh
                self._identity = (now.st_dev, now.st_ino)
                self._rest = b""
            elif now.st_size < os.lseek(self._file, 0, os.SEEK_CUR):
                os.lseek(self._file, 0, os.SEEK_SET)
                self._rest = b""
