"""The meaning of each Xid of the NVIDIA driver: a program's error, a warning, or a fault of the hardware.

Codes: NVIDIA's Xid catalogue (docs.nvidia.com/deploy/xid-errors) and nverror.h of its open kernel modules. A wrong
alarm takes a healthy machine out of service: what a program can cause by itself is information, and
what names its own severity is believed.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass

from agent.system.events import Event, Severity

AFTERMATH_NS = 60_000_000_000
"""What follows another Xid on the same GPU within this time may be its consequence."""
APART_NS = 600_000_000_000
"""Program errors of one GPU that are further apart than this come from different runs."""
RUNS = 3
"""So many runs with a program error on this GPU alone make the GPU, and not the program, worth a look."""
FORGET_NS = 86_400_000_000_000

LOST, PREEMPTED, RECOVERY, SMOOTHED = 79, 45, 154, 162
NVLINK = frozenset({74, *range(144, 151)})

_CODES: dict[Severity, str] = {
    "info": """
13 a program's kernel failed (graphics engine exception)
16 display engine hung
31 a program touched memory that is not its own (MMU fault)
43 a program's channel was stopped after an error of its own
45 channels of a program were cleaned up
68 video decoder exception
69 a program used the graphics engine wrongly
91 reserved
137 a program touched memory of another GPU that is not mapped
141 reserved
162 power smoothing is on again
""",
    "warn": """
8 a program's channel made no progress
24 semaphore timeout
32 a command stream was corrupted on its way, mostly over PCIe
38 driver firmware error
46 the GPU stopped processing
61 internal microcontroller breakpoint
63 memory row or page to be retired, after the next reset
78 virtual GPU could not be started
80 corrupted data sent to the GPU
90 memory interface error
93 information ROM wears out
94 contained memory error: the program that used it was stopped, the others go on
109 context switch timed out
121 error on the link to the CPU (C2C)
122 firmware memory cannot be read
123 firmware memory cannot be written
124 firmware memory cannot be erased
125 information ROM is damaged
154 another recovery action is asked for
155 NVLink error found by software
156 a part of the GPU is to be retired
160 a memory channel is to be retired
163 power smoothing is off
164 power smoothing wears out
165 power smoothing is worn out
168 errors in protected memory
""",
    "crit": """
48 memory error that ECC could not correct
54 auxiliary power is not connected
62 internal microcontroller halted
64 memory row or page could not be retired
74 NVLink error
79 the GPU has fallen off the bus
92 corrected memory errors at a high rate
95 uncontained memory error: every program on the GPU is affected
110 security fault
119 the GPU's system processor (GSP) does not answer
120 the GPU's system processor (GSP) failed
136 NVLink training failed
140 memory errors that were not recovered from
142 the driver found the GPU in an impossible state
143 the GPU could not be initialised
144 NVLink error (SAW)
145 NVLink error (RLW)
146 NVLink error (TLW)
147 NVLink error (TREX)
148 NVLink error (NVLPW)
149 NVLink error (NETIR)
150 NVLink error (MSE)
157 a part of the GPU could not be retired
158 the GPU timed out for good
161 a memory channel could not be retired
167 PCIe timed out for good
171 memory error in DRAM that ECC could not correct
172 memory error in SRAM that ECC could not correct
""",
}
_ENGINES = frozenset({19, *range(20, 23), 25, *range(27, 31), *range(33, 37), *range(39, 43), 44, 47, 60, 65})
_ENGINES |= frozenset({*range(70, 74), *range(75, 78), *range(81, 87), 88, 89})
_PROGRAM = frozenset({13, 31, 43, 68, 69}) | _ENGINES


def _table() -> dict[int, tuple[Severity, str]]:
    found: dict[int, tuple[Severity, str]] = dict.fromkeys(_ENGINES, ("info", "an engine refused a program's commands"))
    for severity, rows in _CODES.items():
        for row in rows.strip().splitlines():
            code, words = row.split(" ", 1)
            found[int(code)] = (severity, words)
    return found


XIDS: dict[int, tuple[Severity, str]] = _table()


@dataclass(frozen=True, slots=True)
class Meaning:
    """The meaning of one Xid for the machine."""

    severity: Severity
    words: str
    program: bool
    """A program can cause it by itself."""


def classify(code: int, text: str = "") -> Meaning:
    """The meaning of an Xid; `text` is what the driver wrote behind the code, empty where only the code is known.

    A code that is not in the list is a warning: it is neither known to be harmless nor to be a fault.
    """
    severity, words = XIDS.get(code, ("warn", "not a known code"))
    low = text.lower()
    if code in NVLINK and re.search(r"\bnon-?fatal\b", low):
        severity, words = "warn", f"{words}, not fatal"
    elif code == RECOVERY and text:
        action = re.search(r"\bto 0x[0-9a-f]+ \(([^)]{1,60})\)", text)
        words = f"recovery action: {action[1]}" if action else words
        needed = action is not None and re.search(r"reset|reboot|flr", action[1].lower())
        # "Drain and Reset" may wait for the work to end; the others may not.
        severity = "crit" if needed and "drain" not in low.partition(" to 0x")[2] else "warn"
        severity = "info" if action is not None and action[1].lower() == "none" else severity
    return Meaning(severity, words, code in _PROGRAM)


class Xids:
    """Judges each Xid in the light of those before it on this machine. Times are Unix ns."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[int, int]] = {}  # device: time and code of what other Xids may follow
        self._programs: dict[str, deque[int]] = {}  # device: times of program errors, one a run
        self._others: dict[str, int] = {}  # device: time of its last program error

    def classify(self, now: int, device: str, code: int, text: str = "") -> Event | None:
        """The event for an Xid on a device (such as gpu:3); None for the mere aftermath of one that was reported."""
        meaning = classify(code, text)
        severity, words = meaning.severity, meaning.words
        if code == PREEMPTED:
            if "previous Xid" in text or self._recent(now, device):
                return None
        elif code in NVLINK and (lost := self._lost(now, device)):
            severity, words = "warn", f"{words}, after {lost} was lost"
        elif meaning.program and (runs := self._alone(now, device)) >= RUNS:
            severity, words = "warn", f"{words}; in {runs} runs on this GPU and no other of the machine: test it"
        if code not in (PREEMPTED, RECOVERY, SMOOTHED):
            self._remember(now, device, code)
        return Event(f"xid:{code}", device, severity, f"Xid {code}: {words}")

    def _recent(self, now: int, device: str) -> bool:
        at, _ = self._last.get(device, (0, 0))
        return 0 <= now - at < AFTERMATH_NS

    def _lost(self, now: int, device: str) -> str:
        """Another GPU that has just fallen off the bus: its neighbours' links break with it."""
        for other, (at, code) in self._last.items():
            if code == LOST and other != device and 0 <= now - at < AFTERMATH_NS:
                return other
        return ""

    def _alone(self, now: int, device: str) -> int:
        """In how many runs of the last day this device, and no other at the time, showed a program error."""
        runs = self._programs.setdefault(device, deque(maxlen=16))
        while runs and not 0 <= now - runs[0] < FORGET_NS:
            runs.popleft()
        company = any(0 <= now - at < AFTERMATH_NS for other, at in self._others.items() if other != device)
        if company:
            for other, times in self._programs.items():  # the others that were first were not alone either
                if other != device and times and 0 <= now - times[-1] < AFTERMATH_NS:
                    times.pop()
        elif not runs or now - self._others.get(device, 0) >= APART_NS:
            runs.append(now)
        self._others[device] = now
        return len(runs)

    def _remember(self, now: int, device: str, code: int) -> None:
        before, known = self._last.get(device, (0, 0))
        # The loss of a GPU explains more than what comes after it.
        if known != LOST or not 0 <= now - before < AFTERMATH_NS:
            self._last[device] = (now, code)
        if len(self._last) > 256:
            self._last.clear()
            self._programs.clear()
            self._others.clear()
