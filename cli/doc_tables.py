"""Tables in docs/ that are generated from the code: `python -m cli.doc_tables` rewrites them.

The table that follows a comment, up to the next blank line, is generated: `<!-- settings: detector.zoom_s ... -->`
lists keys of the configuration, `<!-- keys: detector -->` means all keys of one of its tables, and
`<!-- generated: NAME -->` one of GENERATED.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from agent.kernel_log.xid import XIDS
from cli.reference import Key, keys
from detector.explain.root_causes import TABLE, UNKNOWN
from detector.methods.evidence.rules import RULES

_UNITS = {"_s": "s", "_seconds": "s", "_days": "days", "_steps": "steps", "_hertz": "Hz", "_share": "share"}
_TABLE = re.compile(r"(<!-- (settings|keys|generated): ([^>]+) -->\n)((?:\|.*\n)*)")


def with_tables(page: str) -> str:
    """The text of a page with its tables generated from the code. Raises KeyError for an unknown key."""
    return _TABLE.sub(lambda found: found[1] + _generated(found[2], found[3]), page)


def listed(page: str, how: str = "settings") -> list[str]:
    """What the comments of a page list that begin with this word."""
    return [name for found in _TABLE.finditer(page) if found[2] == how for name in found[3].split()]


def _generated(how: str, names: str) -> str:
    if how == "generated":
        return GENERATED[names]()
    if how == "keys":
        return _settings(keys()[names.strip('"')])
    known = {f"{table}.{key.name}": key for table, found in keys().items() for key in found}
    return _settings([known[name] for name in names.split()])


def _settings(found: list[Key]) -> str:
    rows = ((f"`{key.name}`", _unit(key.name), f"`{key.default}`", key.words) for key in found)
    return _table("Setting | Unit | Default | Meaning", rows)


def _kinds() -> str:
    """The kinds of fault that a verdict names, with their signs and the next step."""
    rows = (
        (f"`{kind.name}`", kind.words, _code(kind.tell).replace("&", "` with `"), kind.advice)
        for kind in (*(kind for tier in TABLE for kind in tier), UNKNOWN)
    )
    return _table("Kind | Likely cause | Signs, of which one is enough | Next step", rows)


def _rules() -> str:
    """The rules of the method `evidence`."""
    rows = (
        (
            f"`{rule.table}.{rule.column}`",
            rule.level,
            rule.words,
            f"{rule.assert_after_s:g} s",
            f"{rule.clear_after_s:g} s",
        )
        for rules in RULES.values()
        for rule in rules
    )
    return _table("Reading | Level | The verdict says that it … | After | Over after", rows)


def _xids() -> str:
    """Xids that are more than a program's own error."""
    rows = ((str(code), severity, words) for code, (severity, words) in sorted(XIDS.items()) if severity != "info")
    return _table("Xid | Severity | Meaning", rows)


GENERATED = {"kinds": _kinds, "rules": _rules, "xids": _xids}
"""Tables by name."""


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _table(head: str, rows: Iterable[tuple[str, ...]]) -> str:
    cells = (" | ".join(cell.replace("|", "/") for cell in row) for row in rows)
    return "\n".join([f"| {head} |", "|" + " --- |" * (head.count("|") + 1), *(f"| {row} |" for row in cells), ""])


def _unit(name: str) -> str:
    return next((unit for end, unit in _UNITS.items() if name.endswith(end)), "")


if __name__ == "__main__":
    for file in sorted(Path("docs").rglob("*.md")):
        file.write_text(with_tables(file.read_text()))
