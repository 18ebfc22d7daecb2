"""Errors of the emulated fleet."""

from __future__ import annotations


class CallError(OSError):
    """A library can't be loaded, or a call answered with an error code."""
