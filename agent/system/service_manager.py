"""Tells systemd that a service is ready and that its loop still runs: the protocol of sd_notify(3), by hand.

A unit of Type=notify names a datagram socket in NOTIFY_SOCKET. Each call of `alive` is one datagram on it: the first
makes the unit "active", each one feeds its watchdog (WatchdogSec=). A loop that hangs sends none; systemd then sends
SIGABRT, on which Python writes where every thread is to the journal, and starts the service again.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import socket
from collections.abc import Callable

log = logging.getLogger(__name__)

Alive = Callable[[str], None]
"""Called by a loop at each turn, with its state in a few words."""


def ignore(status: str) -> None:
    """For a loop that no service manager watches."""


class ServiceManager:
    """The service manager that started this process, if any; it says nothing where there is none."""

    def __init__(self) -> None:
        address = os.environ.pop("NOTIFY_SOCKET", "")  # not for children: only this process may speak for the unit
        self._socket: socket.socket | None = None
        self._status, self._ready, self._failed = "", False, False
        if not address:
            return
        faulthandler.enable()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        self._address = "\0" + address[1:] if address.startswith("@") else address

    def alive(self, status: str) -> None:
        """The loop has made a turn: ready from the first call on. The status is shown by `systemctl status`."""
        words = ["WATCHDOG=1"]
        if not self._ready:
            words.append("READY=1")
        if status != self._status:
            words.append(f"STATUS={' '.join(status.split())}")
        if self._send(words):
            self._ready, self._status = True, status

    def close(self) -> None:
        """The service ends, by itself or as ordered; nothing is said any more."""
        self._send(["STOPPING=1"])
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, words: list[str]) -> bool:
        if self._socket is None:
            return False
        try:
            self._socket.sendto("\n".join(words).encode(), self._address)
        except OSError as error:  # the next turn tries again
            if not self._failed:
                log.warning("the service manager cannot be reached: %s", error.strerror)
            self._failed = True
            return False
        self._failed = False
        return True
