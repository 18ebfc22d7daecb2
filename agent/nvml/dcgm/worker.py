"""The child that reads DCGM: one line of JSON a period, until it is closed or the host engine is gone.

python -I -m agent.nvml.dcgm.worker PERIOD_S SLOW_S ACTIVITY PATH…
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from agent.nvml.dcgm.binding import FAIL, GPU, LINK, SWITCH, DcgmError, Engine
from agent.system.reading_child import settle, tell

_NVML_INDEX, _ALL = 52, 0xFFFFFFFF
ACTIVITY = {
    1001: "graphics_active_ratio",
    1002: "sm_active_ratio",
    1003: "sm_occupancy_ratio",
    1004: "tensor_active_ratio",
    1005: "dram_active_ratio",
    1006: "fp64_active_ratio",
    1007: "fp32_active_ratio",
    1008: "fp16_active_ratio",
}
"""Field -> column of the table `gpu`; the kinds of GPUs lack some of them."""
OF_SWITCH = {856: "fatal_sxid", 857: "nonfatal_sxid", 858: "temperature_celsius", 864: "reset_required"}
"""Field -> column of the table `nvswitch`."""
OF_LINKS = {
    782: "fatal_errors_total",
    783: "nonfatal_errors_total",
    784: "link_replays_total",
    785: "link_recoveries_total",
    787: "link_crc_errors_total",
    788: "link_ecc_errors_total",
}
"""The same of a switch's links, added up."""
_LINK_STATUS, _ACTIVE = 870, 2


class Reading:
    """The watches of this connection, and what they have brought. Raises DcgmError, OSError."""

    def __init__(self, engine: Engine, period_s: float, slow_s: float, activity: bool) -> None:
        self._engine = engine
        gpus, self._switches = engine.entities(GPU), engine.entities(SWITCH)
        self._index = {gpu: str(int(at)) for gpu, _, at in engine.values(GPU, gpus, (_NVML_INDEX,), live=True)}
        self._links = [link for link in engine.entities(LINK) if link & 0xFF == SWITCH] if self._switches else []
        self._groups = [engine.group(kind) for kind, there in ((GPU, gpus), (SWITCH, self._switches)) if there]
        self._slow_s = slow_s
        for group in self._groups:
            engine.watch_health(group, _ALL, self._slow_s)
        if self._switches:
            engine.watch(self._groups[-1], tuple(OF_SWITCH), self._slow_s)
            engine.watch(self._groups[-1], (*OF_LINKS, _LINK_STATUS), self._slow_s)
        self._activity, self.note = False, ""
        if activity and gpus:
            self._watch_activity(period_s)
        self._slow_at = 0.0

    def read(self, now_s: float) -> dict[str, Any]:
        """One reading; `now_s` is a steady clock."""
        found: dict[str, Any] = {"gpus": self._ratios() if self._activity else {}, "note": self.note}
        if now_s >= self._slow_at:
            self._slow_at = now_s + self._slow_s
            found |= {"switches": self._read_switches(), "incidents": self._incidents(), "known": self._known()}
        return found

    def _watch_activity(self, period_s: float) -> None:
        """Where the GPUs or another profiler forbid it, the rest is read all the same."""
        try:
            self._engine.watch(self._groups[0], tuple(ACTIVITY), period_s)
            self._activity = True
        except DcgmError as error:
            self.note = f"activity of units is not measured: {error}"

    def _ratios(self) -> dict[str, dict[str, float]]:
        found: dict[str, dict[str, float]] = {}
        for gpu, field, value in self._engine.values(GPU, tuple(self._index), tuple(ACTIVITY)):
            if 0.0 <= value <= 1.0:
                found.setdefault(self._index[gpu], {})[ACTIVITY[field]] = value
        return found

    def _read_switches(self) -> dict[str, dict[str, float]]:
        found: dict[str, dict[str, float]] = {}
        for number, field, value in self._engine.values(SWITCH, self._switches, tuple(OF_SWITCH)):
            found.setdefault(str(number), {})[OF_SWITCH[field]] = value
        for link, field, value in self._engine.values(LINK, self._links, (*OF_LINKS, _LINK_STATUS)):
            of = found.setdefault(str(link >> 16), {})  # dcgm_link_t: kind, link, switch
            column = OF_LINKS.get(field, "links_up")
            of[column] = of.get(column, 0.0) + (value if field in OF_LINKS else float(value == _ACTIVE))
        return found

    def _incidents(self) -> list[tuple[str, int, bool, str]]:
        """Device, system, whether it fails, and DCGM's words."""
        names = {(GPU, gpu): f"gpu:{index}" for gpu, index in self._index.items()}
        names |= {(SWITCH, switch): f"nvswitch:{switch}" for switch in self._switches}
        return [
            (names[one.kind, one.number], one.system, one.health >= FAIL, one.message[:300])
            for group in self._groups
            for one in self._engine.health(group)
            if (one.kind, one.number) in names
        ]

    def _known(self) -> list[str]:
        """The devices with health watches."""
        return [f"gpu:{index}" for index in self._index.values()] + [f"nvswitch:{number}" for number in self._switches]


def main() -> None:
    """Read until the host engine or the agent is gone; why is the last line."""
    settle()
    period_s, slow_s = map(float, sys.argv[1:3])
    try:
        reading = Reading(Engine(sys.argv[4:]), period_s, slow_s, sys.argv[3] == "activity")
        while True:
            begun = time.monotonic()
            tell(reading.read(begun))
            time.sleep(max(0.05, begun + period_s - time.monotonic()))
    except BrokenPipeError:
        os._exit(0)  # the agent has closed the pipe
    except (DcgmError, OSError, AttributeError) as error:  # a library without a function that is asked for
        tell({"error": str(error)})


if __name__ == "__main__":
    main()
