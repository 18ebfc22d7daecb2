"""What `peerwatch top` shows now, and what each key changes: no terminal and no clock, so that tests press keys too."""

from __future__ import annotations

from dataclasses import dataclass

from cli.queries.live_history import NAMES

LEVELS = {"crit": 0, "warn": 1, "unknown": 2, "ok": 3}
SORTS = ("level", "name", *NAMES)
HELP = (
    ("up, down, k, j, page up, page down, g, G", "move"),
    ("enter, right, l", "from a machine to its GPUs, from a GPU to its ranks"),
    ("left, h, backspace, escape", "back"),
    ("s, S", "sort by the next, the previous column"),
    ("r", "reverse the order"),
    ("/", "filter by a part of the machine's name; enter applies it, escape drops it"),
    ("o", "only machines that are not ok, or all"),
    ("space", "pause, or go on"),
    ("?", "this help, or close it"),
    ("q", "quit"),
)


@dataclass
class TopState:
    """The state; `path` is empty (fleet), a machine, or a machine and a GPU; `shown` rows fit, of `rows` there are."""

    sort: str = "level"
    reverse: bool = False
    filter: str = ""
    only_odd: bool = False
    path: tuple[str, ...] = ()
    cursor: int = 0
    rows: tuple[str, ...] = ()
    shown: int = 10
    typing: bool = False
    help: bool = False
    paused: bool = False
    quit: bool = False

    @property
    def first(self) -> int:
        """The first row on the screen: the cursor stays in sight."""
        return max(0, min(self.cursor - self.shown // 2, len(self.rows) - self.shown))

    def show(self, rows: tuple[str, ...], shown: int) -> None:
        """Take over the names of the rows in order; the cursor stays within them."""
        self.rows, self.shown = rows, max(1, shown)
        self.cursor = max(0, min(self.cursor, len(rows) - 1))

    def press(self, key: str) -> None:
        """Do what a key asks for; keys without a meaning do nothing."""
        if self.typing:
            self._type(key)
        elif self.help:
            self.help = False
            self.quit = key == "q"
        else:
            action = _ACTIONS.get(key)
            if action:
                getattr(self, f"_{action[0]}")(*action[1:])

    def _type(self, key: str) -> None:
        if key == "enter":
            self.typing = False
        elif key == "escape":
            self.typing, self.filter = False, ""
        elif key == "backspace":
            self.filter = self.filter[:-1]
        elif len(key) == 1 and len(self.filter) < 60:
            self.filter += key

    def _move(self, by: int) -> None:
        self.cursor = max(0, min(self.cursor + by, len(self.rows) - 1))

    def _page(self, direction: int) -> None:
        self._move(direction * self.shown)

    def _enter(self) -> None:
        if len(self.path) < 2 and self.rows:
            self.path, self.cursor = (*self.path, self.rows[self.cursor]), 0

    def _back(self) -> None:
        self.path, self.cursor = self.path[:-1], 0

    def _next_sort(self, by: int) -> None:
        self.sort = SORTS[(SORTS.index(self.sort) + by) % len(SORTS)]

    def _toggle(self, name: str) -> None:
        setattr(self, name, not getattr(self, name))


_FAR = 10**9
_ACTIONS: dict[str, tuple[object, ...]] = {
    **dict.fromkeys(("up", "k"), ("move", -1)),
    **dict.fromkeys(("down", "j"), ("move", 1)),
    **dict.fromkeys(("home", "g"), ("move", -_FAR)),
    **dict.fromkeys(("end", "G"), ("move", _FAR)),
    "page up": ("page", -1),
    "page down": ("page", 1),
    **dict.fromkeys(("enter", "right", "l"), ("enter",)),
    **dict.fromkeys(("left", "h", "backspace", "escape"), ("back",)),
    "s": ("next_sort", 1),
    "S": ("next_sort", -1),
    "r": ("toggle", "reverse"),
    "/": ("toggle", "typing"),
    "o": ("toggle", "only_odd"),
    " ": ("toggle", "paused"),
    "?": ("toggle", "help"),
    "q": ("toggle", "quit"),
}
