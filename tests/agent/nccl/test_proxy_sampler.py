"""Looks at the progress of transfers: how often they come."""

from __future__ import annotations

import pytest

from agent.nccl.proxy_sampler import pause


def test_looks_that_take_long_come_less_often() -> None:
    """However many communicators there are, looks take one part in a hundred of a core and no more."""
    assert pause(0.125, spent=0.0007) == 0.125
    assert pause(0.125, spent=0.0031) == pytest.approx(0.31)
