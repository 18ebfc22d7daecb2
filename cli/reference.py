"""Every key of the configuration with its description and default, read from the configuration classes."""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, is_dataclass
from dataclasses import fields as data_fields
from typing import Any

import msgspec

from cli.config import PLACE, Settings

__all__ = ["PLACE", "Key", "keys", "template", "toml"]

_SECRET = ("url",)
_HIDDEN = "(not shown: it may be a secret)"


@dataclass(frozen=True, slots=True)
class Key:
    """One key: name within its table, description, and default or value in TOML."""

    name: str
    words: str
    default: str


def keys(settings: Settings | None = None) -> dict[str, list[Key]]:
    """Table ("" outside any) -> keys, with the values of `settings`, else with the defaults."""
    return dict(_tables("", settings or Settings()))


def _tables(name: str, value: Any) -> Iterator[tuple[str, list[Key]]]:
    words, found, below = _words(type(value)), [], []
    for one in _fields(value):
        inner = getattr(value, one)
        if isinstance(inner, msgspec.Struct) or is_dataclass(inner):
            below.append((f"{name}.{one}" if name else one, inner))
        else:
            found.append(Key(one, words.get(one, ""), toml(_HIDDEN if one in _SECRET and inner else inner)))
    yield name, found
    for table, inner in below:
        yield from _tables(table, inner)


def _fields(value: Any) -> list[str]:
    return [one.name for one in (data_fields(value) if is_dataclass(value) else msgspec.structs.fields(value))]


def _words(kind: type) -> dict[str, str]:
    """Field -> the string literal below it in the source of a class; Python does not store these."""
    [tree] = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for one, after in zip(tree.body, tree.body[1:], strict=False):
        text = after.value if isinstance(after, ast.Expr) else None
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) and isinstance(text, ast.Constant):
            found[one.target.id] = " ".join(str(text.value).split())
    return found


def toml(value: Any) -> str:
    """A value in TOML."""
    if isinstance(value, msgspec.Struct):
        value = msgspec.structs.asdict(value)
    if isinstance(value, dict):
        return (
            f"{{ {', '.join(f'{json.dumps(key)} = {toml(item)}' for key, item in value.items())} }}" if value else "{}"
        )
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(toml, value))}]"
    return json.dumps(value)


def template() -> str:
    """A configuration with every key as a comment, with its description and default."""
    lines = ["# Configuration of Peerwatch. Every key is a comment with its default."]
    for table, found in keys().items():
        lines += ["", f"[{table}]"] if table else []
        for key in found:
            lines += ["", *textwrap.wrap(key.words, 116, initial_indent="# ", subsequent_indent="# ")]
            lines.append(f"#{key.name} = {key.default}")
    return "\n".join([*lines, ""])
