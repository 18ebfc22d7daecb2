"""Known facts of mapped files, within bounds: of a user who maps very many, only that user's files are evicted."""

from __future__ import annotations

FileKey = tuple[str, int, str]
"""Device, inode and name of a mapping, as /proc/PID/maps shows them. A file that is deleted soon leaves its number to
another, such as the next version's libraries; that one mostly has another name."""
OF_USER, WHOLE = 8192, 65536


class KnownFiles:
    """The identity of each file that carries probes or could, and "" for those of no interest."""

    def __init__(self) -> None:
        self._names: dict[FileKey, str] = {}
        self._of_user: dict[int, set[FileKey]] = {}

    def get(self, key: FileKey) -> str | None:
        """What is known of it; None: nothing."""
        return self._names.get(key)

    def put(self, key: FileKey, name: str, user: int) -> None:
        """Remember it, at the expense of the user of the process through which it was found."""
        if len(self._of_user.setdefault(user, set())) >= OF_USER:
            self._drop(user)
        if len(self._names) >= WHOLE:
            self._drop(max(self._of_user, key=lambda one: len(self._of_user[one])))
        self._of_user.setdefault(user, set()).add(key)
        self._names[key] = name

    def evict(self, name: str) -> None:
        """Drop all that was known by that name."""
        gone = {key for key, known in self._names.items() if known == name}
        for key in gone:
            del self._names[key]
        for keys in self._of_user.values():
            keys -= gone

    def _drop(self, user: int) -> None:
        for key in self._of_user.pop(user):
            self._names.pop(key, None)
