"""Manual pages (roff, man(7)) from the commands' help: `python -m cli.manual FOLDER` writes one for each command."""

from __future__ import annotations

import re
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import typer

from cli.main import app
from cli.options import ORDER
from cli.reference import PLACE, Key, keys

_STATUS = {
    "status": "0 ok, 1 warn, 2 crit, 3 unknown: no fresh reading, or the store cannot be read.",
    "demo": "0 the verdict is correct, 1 it is wrong or missing.",
    "doctor": "0 nothing is blocked, 1 something is.",
}
_USUAL = "0; 1 after an error, which is one line on standard error; 2 for a wrong option; 130 after an interrupt."


def pages() -> dict[str, str]:
    """File name -> page: the program, each command, and the configuration."""
    root = typer.main.get_command(app)
    found = {"peerwatch.1": _page("peerwatch", root), "peerwatch.toml.5": _configuration()}
    return found | {f"{name.replace(' ', '-')}.1": _page(name, command) for name, command in _below("peerwatch", root)}


def _below(name: str, command: Any) -> list[tuple[str, Any]]:
    """The subcommands, recursively: full name and command."""
    found = []
    for word, one in getattr(command, "commands", {}).items():
        if getattr(one, "hidden", False):
            continue
        found += [(f"{name} {word}", one), *_below(f"{name} {word}", one)]
    return found


def _page(name: str, command: Any) -> str:
    first, _, rest = _plain(command.help or "").partition("\n\n")
    lines = [*_head(name.replace(" ", "-"), 1), ".SH NAME", f"{_text(name.replace(' ', '-'))} \\- {_text(first)}"]
    lines += [".SH SYNOPSIS", f".B {_text(name)}", _text(_usage(command)), ".SH DESCRIPTION", _text(first)]
    lines += [".PP", _text(rest)] if rest else []
    shown = [one for one in command.params if not getattr(one, "hidden", False)]
    for title, kind in (("ARGUMENTS", "argument"), ("OPTIONS", "option")):
        mine = [one for one in shown if one.param_type_name == kind]
        lines += [f".SH {title}"] * bool(mine)
        for one in mine:
            lines += [".TP", _names(one), _text(_plain(getattr(one, "help", "") or "") + _default(one))]
    if below := getattr(command, "commands", {}):
        lines.append(".SH COMMANDS")
        for word, one in below.items():
            if getattr(one, "hidden", False):
                continue
            page = f"{name} {word}".replace(" ", "-")
            lines += [".TP", f".BR {_text(page)} (1)", _text(_plain(one.help or "").partition("\n\n")[0])]
    word = name.rpartition(" ")[2]
    lines += [".SH EXIT STATUS", _text(_STATUS.get(word, _USUAL)), ".SH FILES", ".TP", f".I {PLACE}"]
    lines += ["The configuration, see", ".BR peerwatch.toml (5).", ".PP", _text(f"The store is {ORDER}.")]
    return "\n".join([*lines, ".SH SEE ALSO", ".BR peerwatch (1),", ".BR peerwatch.toml (5)", ""])


def _configuration() -> str:
    lines = [
        *_head("peerwatch.toml", 5),
        ".SH NAME",
        "peerwatch.toml \\- configuration of Peerwatch",
        ".SH DESCRIPTION",
    ]
    lines += [
        f"Read from {PLACE}, or as",
        ".B \\-\\-config",
        "says; every key has a default.",
        ".BR peerwatch\\-config (1)",
    ]
    lines += ["checks, shows and creates it."]
    for table, found in keys().items():
        lines.append(f".SH {_text(f'[{table}]' if table else 'KEYS OUTSIDE ANY TABLE')}")
        for key in found:
            lines += [".TP", f".B {_text(key.name)}", _text(_key_text(key))]
    return "\n".join([*lines, ""])


def _key_text(key: Key) -> str:
    return f"{key.words} Default: {key.default}."


def _head(name: str, section: int) -> list[str]:
    return [f'.TH "{name.upper()}" "{section}" "" "peerwatch {version("peerwatch")}" "Peerwatch"', ".nh"]


def _usage(command: Any) -> str:
    words = ["[OPTIONS]"]
    for one in command.params:
        if one.param_type_name == "argument":
            name = (one.metavar or one.name).upper() + ("..." if one.nargs == -1 else "")
            words.append(name if one.required else f"[{name}]")
    return " ".join([*words, *(["COMMAND [ARGS]..."] if getattr(command, "commands", None) else [])])


def _names(one: Any) -> str:
    if one.param_type_name == "argument":
        return f".I {_text((one.metavar or one.name).upper())}"
    takes = "" if one.is_flag else " VALUE"
    return f".B {_text(', '.join([*one.opts, *one.secondary_opts]) + takes)}"


def _default(one: Any) -> str:
    known = getattr(one, "default", None)
    if isinstance(known, str | int | float | Path) and not isinstance(known, bool) and known != "":
        return f" Default: {known}."
    return ""


def _plain(text: str) -> str:
    """Help text with one line per paragraph."""
    return "\n\n".join(" ".join(part.split()) for part in re.split(r"\n\s*\n", text.strip()))


def _text(text: str) -> str:
    """Text escaped for roff: a backslash, dot or quote at the start of a line is literal."""
    ours = text.replace("\\", "\\e").replace("-", "\\-")
    plain = "".join(sign if sign.isascii() else f"\\[u{ord(sign):04X}]" for sign in ours)
    return "\n".join(f"\\&{line}" if line.startswith((".", "'")) else line for line in plain.splitlines())


def write(folder: Path) -> list[Path]:
    """Write all pages into man1 and man5 of a folder; returns the paths. Raises OSError."""
    written = []
    for name, text in pages().items():
        place = folder / f"man{name[-1]}" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
        written.append(place)
    return written


if __name__ == "__main__":
    write(Path(sys.argv[1]))
