"""Reads JSON that others wrote, a value at a time: memory stays bounded, and what is wrong becomes one line.

Profilers write hundreds of megabytes; a file may also be cut off, or made to exhaust memory (a gzip file that expands
a thousand times, brackets without end).
"""

from __future__ import annotations

import codecs
import gzip
import json
import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NoReturn

VALUE_CHARACTERS = 32 << 20
"""The longest single value, such as one event."""
FILE_CHARACTERS = 16 << 30
"""The longest file, expanded."""
_CHUNK = 1 << 20
_BLANK = " \t\r\n"


class TraceError(ValueError):
    """A log cannot be read; the message is one line with the file and the cause."""


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """The file's bytes, expanded where they are gzip. Raises TraceError for what is no readable, whole file."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise TraceError(f"{path} is no regular file")
        with open(path, "rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            if packed:
                with gzip.open(raw) as unpacked:
                    yield unpacked  # type: ignore[misc] # GzipFile reads as IO[bytes] does
            else:
                yield raw
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TraceError(f"{path}: the gzip data is cut off or damaged ({error})") from None
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror or error}") from None


class Scanner:
    """JSON values one after the other from a stream of bytes; each at most VALUE_CHARACTERS long."""

    def __init__(self, stream: IO[bytes], path: Path) -> None:
        self._stream, self._path = stream, path
        self._text, self._at, self._read, self._ended = "", 0, 0, False
        self._decode = json.JSONDecoder().raw_decode
        self._utf8 = codecs.getincrementaldecoder("utf-8")()

    def peek(self) -> str:
        """The next character that is not blank; empty at the end of the file."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in _BLANK:
                self._at += 1
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def take(self, sign: str) -> bool:
        """Whether the next character is `sign`, which is then passed."""
        if self.peek() != sign:
            return False
        self._at += 1
        return True

    def expect(self, sign: str) -> None:
        """Pass this character. Raises TraceError where another stands there."""
        if not self.take(sign):
            self.fail()

    def value(self) -> Any:
        """The next value. Raises TraceError where there is none, or one that is too long or too deep."""
        self.peek()
        while True:
            try:
                found, end = self._decode(self._text, self._at)
            except RecursionError:
                raise TraceError(f"{self._path}: brackets are nested too deeply") from None
            except ValueError:
                found, end = None, -1
            # A number at the end of the buffer may go on in the next chunk.
            if end >= 0 and (end < len(self._text) or self._ended):
                self._at = end
                return found
            if not self._more():
                self.fail()

    def last_line(self) -> bool:
        """Whether what is left is one line without an end: all of the file has been read."""
        while self._more():
            pass
        return "\n" not in self._text[self._at :]

    def fail(self) -> NoReturn:
        """Raise TraceError: the file ends early, or holds something else than JSON here."""
        if not self.peek():
            raise TraceError(f"{self._path} is cut off: it ends within a value; write it again or use another file")
        place = self._read - len(self._text) + self._at
        raise TraceError(f"{self._path} is cut off, or no valid JSON, at character {place:,}")

    def _more(self) -> bool:
        """Read on; false where the end was seen before. Doubles what is held: long values are tried few times."""
        if self._ended:
            return False
        held = len(self._text) - self._at
        if held > VALUE_CHARACTERS:
            raise TraceError(f"{self._path} holds a value of more than {VALUE_CHARACTERS >> 20} MB")
        chunk = self._stream.read(max(_CHUNK, held))
        self._ended = not chunk
        try:
            text = self._utf8.decode(chunk, final=self._ended)
        except UnicodeDecodeError:
            raise TraceError(f"{self._path} is no text in UTF-8: a trace is JSON, also packed with gzip") from None
        self._read += len(text)
        if self._read > FILE_CHARACTERS:
            raise TraceError(f"{self._path} expands to more than {FILE_CHARACTERS >> 30} GB")
        self._text, self._at = self._text[self._at :] + text, 0
        return True


def members(scan: Scanner, streamed: str) -> Iterator[tuple[str, Any]]:
    """(key, value) of the object that follows; of the array under the key `streamed`, one element at a time.

    A file that is a bare array counts as such an object, as the Chrome trace format allows.
    """
    if scan.peek() == "[":
        for element in elements(scan):
            yield streamed, element
        return
    scan.expect("{")
    if scan.take("}"):
        return
    while True:
        key = scan.value()
        if not isinstance(key, str):
            scan.fail()
        scan.expect(":")
        if key == streamed and scan.peek() == "[":
            for element in elements(scan):
                yield key, element
        else:
            yield key, scan.value()
        if scan.take("}"):
            return
        scan.expect(",")


def elements(scan: Scanner) -> Iterator[Any]:
    """The elements of the array that follows."""
    scan.expect("[")
    if scan.take("]"):
        return
    while True:
        yield scan.value()
        if scan.take("]"):
            return
        scan.expect(",")
