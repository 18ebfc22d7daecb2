"""Units and limits of time in the store: Unix nanoseconds, UTC."""

from __future__ import annotations

LATEST = 2**63 - 1
"""The last time there is: Unix nanoseconds, signed 64 bits."""


NEVER = -(2**62)
"""A time before all times; differences to any real time still fit in 64 bits."""


SECOND = 1_000_000_000
