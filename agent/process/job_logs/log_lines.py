"""Step, loss, gradient norm and step time in lines of training logs, by the usual words or by a pattern of the job."""

from __future__ import annotations

import re
from collections.abc import Mapping

NAMES = ("step", "loss", "gradient_norm", "step_seconds", "step_milliseconds")
"""Names of groups in a job's own pattern."""
LONGEST = 4096
"""Characters of a line that are looked at."""
_NUMBER = r"([-+]?(?:nan|inf(?:inity)?|\d{1,20}(?:\.\d{0,20})?(?:e[-+]?\d{1,3})?))(?=(?:m?s)?(?:[^\w.]|\.(?!\d)|$))"
_IS = r"['\"]?[ \t]*[:=]?[ \t]*"
_PACE = r"\b(?:step[_ ]time|iter(?:ation)?[_ ]time)"
_USUAL = {
    "step": r"\b(?:global[_ ]?step|step|iteration|iter)s?" + _IS + r"(\d{1,15})\b(?![.:]\d)",
    "loss": r"\b(?:lm[_ ]loss|train[_ /]?loss|loss)" + _IS + _NUMBER,
    "gradient_norm": r"\bgrad(?:ient)?[_ -]?norm" + _IS + _NUMBER,
    "step_milliseconds": rf"(?:\belapsed time per iteration|{_PACE}) ?\(ms\)" + _IS + _NUMBER,
    "step_seconds": _PACE + r"(?: ?\(s\))?['\"]?[ \t]*[:=][ \t]*" + _NUMBER + r"(?![ \t]*ms)",
}
_PATTERNS = {name: re.compile(pattern, re.IGNORECASE) for name, pattern in _USUAL.items()}


def read_line(line: str, own: re.Pattern[str] | None = None) -> dict[str, float]:
    """The values in a line, by name; `own` is a job's own pattern with groups of these names, used alone."""
    line = line[:LONGEST]
    if own is not None:
        found = own.search(line)
        groups: Mapping[str, str | None] = found.groupdict() if found else {}
    else:
        matches = {name: pattern.search(line) for name, pattern in _PATTERNS.items()}
        groups = {name: found[1] for name, found in matches.items() if found}
    values = {name: number for name, text in groups.items() if text and (number := _number(text)) is not None}
    if "step_milliseconds" in values:
        values["step_seconds"] = values.pop("step_milliseconds") / 1e3
    return values


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None  # the job's own pattern took something else


def check_pattern(text: str) -> re.Pattern[str] | None:
    """A job's own pattern; None for an empty one. Raises ValueError with the reason."""
    if not text:
        return None
    try:
        pattern = re.compile(text)
    except re.error as error:
        raise ValueError(f"agent.job_log.pattern {text!r} is no regular expression: {error}") from error
    unknown = set(pattern.groupindex) - set(NAMES)
    if unknown or not pattern.groupindex:
        raise ValueError(f"agent.job_log.pattern needs named groups: known are {', '.join(NAMES)}")
    return pattern
