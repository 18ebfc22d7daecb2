"""What the fuzz has found, each to stay mended."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from detector.alerts.delivery_log import read_delivery_log
from detector.alerts.sinks.command import Command, CommandConfig
from tests.fuzz.readers import READERS

FOUND = {
    "brackets without end in an answer with zoom requests": ("zoom requests", b"[" * 100_000),
    "no UTF-8 in a delivery log": ("delivery log", b'{"error":"\xe1("}'),
    "an answer without a column of times": (
        "influx json",
        b'{"results":[{"series":[{"name":"gpu","tags":{"machine":"m1"},"columns":["tim"],"values":[[5]]}]}]}',
    ),
    "an answer with rows of other lengths": (
        "influx json",
        b'{"results":[{"series":[{"name":"gpu","tags":{"machine":"m1"},"columns":["time","a"],"values":[[5]]}]}]}',
    ),
}


@pytest.mark.parametrize("what", FOUND)
def test_what_was_found_stays_mended(what: str, tmp_path: Path) -> None:
    """The input ends in an answer or in the reader's own error."""
    name, data = FOUND[what]
    reader = next(reader for reader in READERS if reader.name == name)
    for seed in range(10):
        with suppress(*reader.errors):
            reader.read(data, tmp_path, Random(seed))


def test_a_damaged_byte_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A delivery log that is no UTF-8 is replaced; the record that bounds the command is for people to look at."""
    file = tmp_path / "runs.json"
    file.write_bytes(b'["\xe1("]')
    assert read_delivery_log(file) is None
    with pytest.raises(ValueError, match="check it, then remove it"):
        Command(CommandConfig(run=("/bin/true",)), file, lambda: 10**18)
    assert "cannot be read" in caplog.text
