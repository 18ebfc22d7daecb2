"""Units and limits of time in the store: Unix nanoseconds, UTC, signed 64 bits."""

from __future__ import annotations

SECOND = 1_000_000_000
"""Nanoseconds."""
LATEST = 2**63 - 1
"""The last time that 64 bits hold."""
NEVER = -(2**62)
"""A time before all real times; differences to any of them still fit in 64 bits."""
