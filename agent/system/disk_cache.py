"""A cache of small files on disk, for what one start found out and the next one needs.

A file is used only where no other user can write it or its folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path


class DiskCache:
    """Files of one kind, below $XDG_CACHE_HOME/peerwatch, by default ~/.cache/peerwatch.

    Of larger ones than `most_bytes` none is read; of more than `most` the oldest are forgotten.
    """

    def __init__(self, kind: str, most_bytes: int, most: int, folder: Path | None = None) -> None:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        self._folder = folder or home / "peerwatch" / kind
        self._most_bytes, self._most = most_bytes, most

    def find(self, key: str) -> bytes | None:
        """The data cached under that key; None where there is none, or another user could have written it."""
        with contextlib.suppress(OSError), self._open() as folder:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            with os.fdopen(os.open(_name(key), flags, dir_fd=folder), "rb") as file:
                status = os.fstat(file.fileno())
                if stat.S_ISREG(status.st_mode) and _is_ours(status) and status.st_size <= self._most_bytes:
                    return file.read(self._most_bytes)
        return None

    def keep(self, key: str, data: bytes) -> None:
        """Cache it for the next start, where the disk allows."""
        with contextlib.suppress(OSError):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._open() as folder:
                fresh = f".{secrets.token_hex(8)}"  # process numbers are no names: containers share a folder
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                with os.fdopen(os.open(fresh, flags, 0o600, dir_fd=folder), "wb") as file:
                    file.write(data)
                os.rename(fresh, _name(key), src_dir_fd=folder, dst_dir_fd=folder)
                self._forget_the_oldest(folder)

    @contextlib.contextmanager
    def _open(self) -> Iterator[int]:
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if not _is_ours(os.fstat(folder)):
                raise PermissionError(f"others can write to {self._folder}")
            yield folder
        finally:
            os.close(folder)

    def _forget_the_oldest(self, folder: int) -> None:
        names = os.listdir(folder)
        if len(names) > self._most:
            ages = {name: os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime_ns for name in names}
            for name in sorted(names, key=lambda name: ages[name])[: len(names) - self._most]:
                os.unlink(name, dir_fd=folder)


def _is_ours(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _name(key: str) -> str:
    return hashlib.blake2b(key.encode(), digest_size=16).hexdigest()
