"""Retired words: none of them is in code, comments, messages, help or documents."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ENDINGS = (".py", ".c", ".h", ".md", ".toml", ".service", ".sh")
RETIRED = re.compile(
    r"(?<![A-Za-z])"
    r"(convict\w*|accus\w*|held[ _]against|streaks?|seats?|seated|seating|desks?|whose|whom|nobody|told|oftener|anew"
    r"|trainees?|errands?|crew|ledgers?|fixations?|closer looks?|keeping|kept|happenings?|testimony|standstills?)"
    r"(?![A-Za-z])",
    re.IGNORECASE,
)
EXCEPTIONS = {
    "tests/test_language.py": "(?i)" + RETIRED.pattern,
    "detector/alerts/delivery_log.py": r'rename=\{"reported": "told"\}',  # the key in files of earlier versions
    "cli/commands/service/detector.py": r"\bkept\b|--kept",  # the old name of an option
    "CHANGELOG.md": "--kept",  # the same
    "tests/cli/operator/test_alerts.py": r'\["told"\]',  # the key in files of earlier versions
    "tests/cli/service/demo/test_demo_command.py": 'user="nobody"',  # a user of the system
    "tests/systemd/test_install_bench.py": "--kill-whom",  # an option of systemctl
}
"""What a file may say all the same."""


def files() -> list[str]:
    """The files under version control that people write."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [name for name in listed.splitlines() if name.endswith(ENDINGS)]


def found_in(name: str) -> list[str]:
    """The retired words of a file, each as `file:line: word`."""
    allowed = EXCEPTIONS.get(name, r"$^")
    lines = enumerate((ROOT / name).read_text(encoding="utf-8").splitlines(), 1)
    return [f"{name}:{at}: {word}" for at, line in lines for word in RETIRED.findall(re.sub(allowed, "", line))]


def test_no_retired_word_is_left() -> None:
    """No file has a retired word, in any case, nor a name with one."""
    assert [hit for name in files() for hit in found_in(name)] == []


def test_words_are_found() -> None:
    """The pattern finds words with endings, in any case and beside punctuation, and no parts of other words."""
    assert RETIRED.findall("It CONVICTS, `whose` seat; held_against") == ["CONVICTS", "whose", "seat", "held_against"]
    assert RETIRED.findall("crewed anewly deskside toldness") == []
