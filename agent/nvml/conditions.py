"""Conditions of GPUs, reported as events: NVML hangs, a GPU is lost, the driver is loaded or unloaded."""

from __future__ import annotations

from agent.system.events import Event, Severity

AGAIN_NS = 3_600_000_000_000
"""A condition that lasts is reported again after this time, for readers that came later."""


class GpuConditions:
    """Conditions that last from one reading to the next: each is reported at its beginning, its end, and hourly."""

    def __init__(self) -> None:
        self._said: dict[tuple[str, str], int] = {}

    def begin(self, now: int, code: str, device: str, message: str, severity: Severity = "crit") -> list[Event]:
        """A condition that holds at this time (Unix ns)."""
        said = self._said.get((code, device))
        if said is not None and 0 <= now - said < AGAIN_NS:
            return []
        self._said[code, device] = now
        return [Event(code, device, severity, message)]

    def end(self, code: str, ending: str, message: str, keep: frozenset[str] = frozenset()) -> list[Event]:
        """End the conditions of that code, but for those of the devices to keep."""
        over = [key for key in self._said if key[0] == code and key[1] not in keep]
        for key in over:
            del self._said[key]
        return [Event(ending, device, "info", message) for _, device in over]


NVML_EVENTS: dict[int, tuple[str, Severity, str]] = {
    0x2: ("ecc:uncorrected", "crit", "a memory error that ECC could not correct"),
    0x800: ("remap:failed", "crit", "a faulty memory row could not be remapped"),
    0x2000: ("poison", "crit", "poisoned data was used: its programs were stopped"),
    0x4000: ("gpu_lost", "crit", "the driver says that the GPU is not available"),
}
"""Types of NVML's events: code, severity and what they mean."""
XID = 0x8
