"""The documents: what they name exists, their tables of settings are those of the code, and their lines are short."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cli.doc_tables import listed, with_tables
from cli.reference import keys

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TOP = "agent|analysis|bpf|cli|detector|docs|emulator|store|systemd|tests"


def text_of(page: Path) -> str:
    """A page without its diffs, which name files that they add."""
    return re.sub(r"^```diff\n.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_path_that_is_named_exists(page: Path) -> None:
    """Files and folders of this repository in code spans, and the targets of links, exist."""
    spans = re.findall(rf"`((?:{TOP})/[\w./-]*)`", text_of(page))
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", text_of(page))
    missing = [name for name in spans if not (ROOT / name).exists()]
    missing += [name for name in links if not (page.parent / name).exists()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_modules_that_are_named_exist(page: Path) -> None:
    """Dotted names such as `store.schema.catalogue` lead to a module."""
    names = re.findall(r"-m ((?:agent|bpf|cli|detector|emulator|store)(?:\.\w+)+)", text_of(page))
    assert [name for name in names if not (ROOT / f"{name.replace('.', '/')}.py").exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tables_of_settings_are_those_of_the_code(page: Path) -> None:
    """A changed default or description fails here until `python -m cli.doc_tables` is run."""
    assert with_tables(page.read_text()) == page.read_text()


def test_every_setting_of_the_detector_is_on_one_page() -> None:
    """A new setting needs a place: its name in the `settings:` comment of a page."""
    tables = {table: found for table, found in keys().items() if table.split(".")[0] == "detector"}
    known = [f"{table}.{key.name}" for table, found in tables.items() for key in found]
    assert sorted(name for page in PAGES for name in listed(page.read_text())) == sorted(known)


def test_readme_is_short() -> None:
    """README has at most 120 lines."""
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_lines_are_short(page: Path) -> None:
    """Lines have at most 160 characters, tables and lists of settings excepted."""
    lines = enumerate(page.read_text().splitlines(), 1)
    assert [at for at, line in lines if len(line) > 160 and not line.startswith(("|", "<!-- settings:"))] == []
