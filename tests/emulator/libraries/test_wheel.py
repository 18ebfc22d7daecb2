"""Wheels: NVIDIA's libnccl, fetched where it is not here."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from emulator.libraries import wheel


def test_an_interrupt_while_a_library_is_fetched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C ends it with a shell's exit code and no traceback, and leaves no part of a library."""
    monkeypatch.setattr(wheel, "place", lambda version: tmp_path / version / "libnccl.so.2")
    monkeypatch.setattr(wheel.subprocess, "run", lambda *_, **__: os.kill(os.getpid(), signal.SIGINT))
    assert wheel.main(["2.97.1"]) == 130
    assert capsys.readouterr().err == ""
    assert list((tmp_path / "2.97.1").iterdir()) == []
