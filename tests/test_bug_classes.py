"""The page of bug classes names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs/bug_classes.md").read_text()


def test_every_test_that_is_named_exists() -> None:
    """Each `file::test` of the page is a function of that file."""
    named = set(re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", PAGE))
    texts = {path: (ROOT / path).read_text() for path, _ in named}
    assert sorted(f"{path}::{test}" for path, test in named if f"def {test}(" not in texts[path]) == []
    assert len(named) > 70


def test_every_class_has_a_test_or_a_reason() -> None:
    """No number is left out, and no row says nothing."""
    rows = re.findall(r"^\| (\d+) \| (.+?) \| (.+?) \|$", PAGE, re.MULTILINE)
    assert [int(number) for number, _, _ in rows] == list(range(1, 42))
    assert [number for number, _, tests in rows if "::test_" not in tests and not tests.startswith("– ")] == []
