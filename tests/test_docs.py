"""The documents: what they name exists, their tables of settings are those of the code, and their lines are short."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from agent.kernel_log.patterns import codes
from cli.doc_tables import GENERATED, listed, with_tables
from cli.reference import keys
from detector.model.verdict import RANK

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TOP = "agent|analysis|bpf|cli|deploy|detector|docs|emulator|store|systemd|tests|tools"
COMPARED_ONLY = {"distribution", "mahalanobis", "median", "minder"}
"""Methods that `peerwatch evaluate` compares and no detector runs."""


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


def test_no_page_keeps_the_marks_of_a_merge() -> None:
    """What two branches wrote was put together by a person."""
    marks = re.compile(r"^(<{7}|={7}|>{7})( |$)", re.MULTILINE)
    assert [page.name for page in (*PAGES, ROOT / "CHANGELOG.md") if marks.search(page.read_text())] == []


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


def test_every_setting_is_in_the_reference() -> None:
    """docs/configure.md has each table of the configuration once; its keys are generated."""
    assert listed((ROOT / "docs/configure.md").read_text(), "keys") == [table or '""' for table in keys()]


def test_every_kind_of_verdict_has_its_entry() -> None:
    """docs/operate.md says what to do about each level, method, kind of fault, rule and event of the kernel's log."""
    page = (ROOT / "docs/operate.md").read_text()
    assert listed(page, "generated") == list(GENERATED)
    first = re.findall(r"^\| (.*?) \|", page, re.MULTILINE)
    entries = {name for cell in first for name in re.findall(r"`(\w+)`", cell)}
    found = [ast.parse(file.read_text()) for file in (ROOT / "detector/methods").rglob("*.py")]
    calls = [node for tree in found for node in ast.walk(tree) if isinstance(node, ast.Call)]
    verdicts = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "Verdict"]
    words = {word.value for call in verdicts for word in call.args[4:5] if isinstance(word, ast.Constant)}
    methods = words - COMPARED_ONLY
    assert {"progress", "evidence"} <= methods
    assert methods | set(RANK) | set(codes()) <= entries


def test_readme_is_short() -> None:
    """README has at most 120 lines."""
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_lines_are_short(page: Path) -> None:
    """Lines have at most 160 characters, tables and lists of settings excepted."""
    lines = enumerate(page.read_text().splitlines(), 1)
    assert [at for at, line in lines if len(line) > 160 and not line.startswith(("|", "<!-- settings:"))] == []
