"""Names in brackets as Slurm writes them: `m[01-03,7]` stands for m01, m02, m03 and m7."""

from __future__ import annotations

import re

MOST_NAMES = 100_000
_PART = re.compile(r"((?:\[[^\[\]]*\]|[^,\[\]])+)(?:,|$)")
_BRACKET = re.compile(r"\[([0-9,\- ]+)\]")


def expanded(text: str) -> list[str]:
    """The names of a list in Slurm's form.

    Source: the man page of scontrol, "hostlist expression". Raises ValueError for a range that is none, or for more
    than 100,000 names.
    """
    out: list[str] = []
    at = 0
    for found in _PART.finditer(text.strip()):
        if found.start() != at:
            break
        at = found.end()
        out += _names(found[1].strip())
        if len(out) > MOST_NAMES:
            raise ValueError(f"{text[:40]}: more than {MOST_NAMES} names")
    if at != len(text.strip()):
        raise ValueError(f"{text[:40]}: no list of names such as m[01-16],n7")
    return out


def _names(pattern: str) -> list[str]:
    bracket = _BRACKET.search(pattern)
    if bracket is None:
        if "[" in pattern:
            raise ValueError(f"{pattern[:40]}: no list of names such as m[01-16],n7")
        return [pattern]
    head, tails = pattern[: bracket.start()], _names(pattern[bracket.end() :])
    numbers = [number for part in bracket[1].split(",") for number in _numbers(part.strip(), pattern)]
    if len(numbers) * len(tails) > MOST_NAMES:
        raise ValueError(f"{pattern[:40]}: more than {MOST_NAMES} names")
    return [f"{head}{number}{tail}" for number in numbers for tail in tails]


def _numbers(part: str, pattern: str) -> list[str]:
    low, sign, high = part.partition("-")
    high = high if sign else low
    if not (low.isdigit() and high.isdigit() and int(low) <= int(high) < int(low) + MOST_NAMES):
        raise ValueError(f"{pattern[:40]}: no range such as 01-16 in its brackets")
    return [str(number).zfill(len(low)) for number in range(int(low), int(high) + 1)]
