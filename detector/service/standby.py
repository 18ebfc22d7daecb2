"""Standby: a detector waits until it holds the lease, speaks as long as it does, and waits again."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from detector.service.lease import BEAT_S, Lease, LeaseLostError, current
from store.schema.contract import Store, StoreError

log = logging.getLogger(__name__)

STALE_NS = 600 * 10**9
"""An older snapshot is not used: to read what came since takes longer than a takeover may."""
_LOOK_S = 0.2


def take_turns(
    lease: Lease, speak: Callable[[], None], stop: threading.Event, alive: Callable[[str], None] = lambda status: None
) -> None:
    """Call `speak` while this detector holds the lease, until `stop` is set; it returns or raises LeaseLostError.

    `alive` is called at each turn of the wait, with the state in a few words.
    """
    watched = ""
    while not stop.is_set():
        if lease.held():
            log.info("this detector speaks (term %d)", lease.term)
            watched = ""
            try:
                speak()
            except LeaseLostError:
                log.warning("another detector speaks now: this one stands by")
            except StoreError as error:
                log.error("the store cannot be used, trying again: %s", error)
                stop.wait(BEAT_S)
        elif lease.other and lease.other.holder != watched:
            watched = lease.other.holder
            log.info("standing by: %s speaks (term %d)", watched, lease.other.term)
        alive(f"standing by: {lease.other.holder} speaks" if lease.other else "standing by")
        stop.wait(_LOOK_S)


def refuse_others(store: Store, place: str) -> None:
    """Raise StoreError where detectors with standby share this store: beside them one without would speak too."""
    found = current(store)
    if found is not None and found.until > time.time_ns():
        raise StoreError(
            f"{found.machine} runs a detector with standby on {place}; start this one with --standby, or stop that one"
        )
