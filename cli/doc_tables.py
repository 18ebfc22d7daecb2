"""Tables of settings in docs/, generated from the configuration classes: `python -m cli.doc_tables` rewrites them.

A page lists the keys of a table in a comment, `<!-- settings: detector.zoom_s detector.zoom_hertz -->`; the table that
follows the comment, up to the next blank line, is generated.
"""

from __future__ import annotations

import re
from pathlib import Path

from cli.reference import Key, keys

_UNITS = {"_s": "s", "_seconds": "s", "_days": "days", "_steps": "steps", "_hertz": "Hz", "_share": "share"}
_TABLE = re.compile(r"(<!-- settings: ([^>]+) -->\n)((?:\|.*\n)*)")


def with_tables(page: str) -> str:
    """The text of a page with its tables generated from the code. Raises KeyError for an unknown key."""
    known = {f"{table}.{key.name}": key for table, found in keys().items() for key in found}
    return _TABLE.sub(lambda found: found[1] + _table([known[name] for name in found[2].split()]), page)


def listed(page: str) -> list[str]:
    """The keys that the tables of a page list."""
    return [name for found in _TABLE.finditer(page) for name in found[2].split()]


def _table(found: list[Key]) -> str:
    rows = [f"| `{key.name}` | {_unit(key.name)} | `{key.default}` | {key.words.replace('|', '/')} |" for key in found]
    return "\n".join(["| Setting | Unit | Default | Meaning |", "| --- | --- | --- | --- |", *rows, ""])


def _unit(name: str) -> str:
    return next((unit for end, unit in _UNITS.items() if name.endswith(end)), "")


if __name__ == "__main__":
    for file in sorted(Path("docs").rglob("*.md")):
        file.write_text(with_tables(file.read_text()))
