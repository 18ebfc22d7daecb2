"""One detector a store: a lock file."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

from detector.alerts.registry import AlertsConfig, folder_of

log = logging.getLogger(__name__)


@contextmanager
def alone(config: AlertsConfig, place: str) -> Iterator[None]:
    """Judge alone: two detectors on one machine would say everything twice. Raises OSError where there is one."""
    folder = folder_of(config, place)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o750)
        # Whoever may open it can lock it, and keep the detector from starting.
        held = open(folder / "detector.lock", "a", opener=lambda name, how: os.open(name, how, 0o640))  # noqa: SIM115
    except OSError as error:  # what was said cannot be kept either, and the ledger tells of it
        log.warning("whether another detector judges cannot be seen: %s", error)
        yield
        return
    with held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OSError(
                f"another detector judges what is in {place} (`peerwatch up`, or the service): stop that one first"
            ) from None
        yield
