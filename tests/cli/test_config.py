"""Settings as the configuration file has them."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.config import ConfigError, read_settings
from detector.config import OLD_NAMES, Config


def test_old_names_of_detector_settings_work_and_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An old name sets what the new one does and prints one line; both together are refused."""
    file = tmp_path / "p.toml"
    file.write_text("[detector]\nlag_s = 3.5\nsilent_seconds = 41.0\n")
    found = read_settings(file).detector
    assert (found.judging_delay_seconds, found.silent_seconds) == (3.5, 41.0)
    assert capsys.readouterr().err == "peerwatch: detector.lag_s is deprecated: use detector.judging_delay_seconds\n"
    file.write_text("[detector]\nlag_s = 3.5\njudging_delay_seconds = 2.5\n")
    with pytest.raises(ConfigError, match=r"old name of detector\.judging_delay_seconds: keep one"):
        read_settings(file)


def test_each_old_name_leads_to_a_setting() -> None:
    """Every deprecated name has a successor, and none is in use."""
    names = set(Config.__dataclass_fields__)
    assert set(OLD_NAMES.values()) <= names
    assert not names & OLD_NAMES.keys()
