"""One detector a store, or several that share a lease: a lock file."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

from detector.alerts.registry import AlertsConfig, folder_of

log = logging.getLogger(__name__)


@contextmanager
def alone(config: AlertsConfig, place: str, shares: bool = False) -> Iterator[None]:
    """Lock the store: two detectors would send every alert twice. Raises OSError where one runs already.

    Detectors that settle among themselves which of them speaks share the lock (`shares`).
    """
    folder = folder_of(config, place)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o750)
        # Whoever may open it can lock it, and keep the detector from starting.
        held = open(folder / "detector.lock", "a", opener=lambda name, how: os.open(name, how, 0o640))  # noqa: SIM115
    except OSError as error:  # the delivery log cannot be written either, and reports it
        log.warning("cannot check whether another detector runs: %s", error)
        yield
        return
    with held:
        try:
            fcntl.flock(held, (fcntl.LOCK_SH if shares else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OSError(
                f"another detector runs on {place} (`peerwatch up`, or the service); "
                "stop that one first, or start both with --standby"
            ) from None
        yield
