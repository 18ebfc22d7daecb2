"""Start time of the server; data acknowledged before it may be lost. Queried once per new connection.

A process that was killed takes its connections with it, so an unbroken connection is proof that it still runs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import urllib3

# Who says so where: InfluxDB 1; InfluxDB 2; VictoriaMetrics, and whoever else has metrics for Prometheus.
_PLACES = {
    "v1": ("/debug/vars",),
    "v2": ("/ready", "/metrics"),
}
_SAID = re.compile(rb'"started":\s*"([^"]+)"|^process_start_time_seconds (\S+)', re.MULTILINE)


class ServerStart:
    """The start time of one server; new connections to it are noticed."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._begun = 0
        self._looked = -1
        self._said = ""

    def watch(self, manager: urllib3.PoolManager) -> None:
        """Notice each connection to the server that is begun from here; urllib3 mends broken ones silently."""
        pool = manager.connection_from_url(self.url)
        plain: Any = pool.ConnectionCls

        def connect(connection: Any) -> None:
            self._begun += 1
            plain.connect(connection)

        pool.ConnectionCls = type("Watched", (plain,), {"connect": connect})

    def began(self, pool: urllib3.PoolManager, dialect: str, headers: Mapping[str, str]) -> str:
        """When the server began, in its own words; empty where it says nothing of it. Raises urllib3's HTTPError.

        What was written before and after this call was written to one process, if the answers are the same.
        """
        if self._looked != self._begun:
            self._said = self._ask(pool, dialect, headers)
            self._looked = self._begun
        return self._said

    def _ask(self, pool: urllib3.PoolManager, dialect: str, headers: Mapping[str, str]) -> str:
        for place in _PLACES[dialect]:
            found = pool.request("GET", f"{self.url}{place}", headers=headers)
            if found.status == 200 and (said := _SAID.search(found.data)):
                return (said[1] or said[2]).decode(errors="replace")
        return ""
