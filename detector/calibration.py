"""Calibration: alarm thresholds from healthy recordings of one's own fleet.

What speaks against a healthy machine comes and goes: an excursion of a sum that falls on average. The peaks of such
excursions have an exponential tail (Iglehart 1972), so a few hundred of them tell how high the bar must be for a
stated number of false alarms, farther out than the recordings reach.
"""

from __future__ import annotations

import math
import re
from dataclasses import fields, replace
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from detector.config import Config

VERSION = 3
"""Raised when evidence changes its meaning, so that what was learned before says nothing any more."""
MOST_BYTES = 1_000_000
"""A larger file is no calibration."""
LEAST, MOST = 0.5, 8.0
"""Times the usual evidence that a calibration may ask for."""
REACH = 1000.0
"""The tail is followed so many times farther than the recordings reach; beyond that it is guesswork."""
_FEWEST, _TAIL, _TAIL_SHARE = 10, 20, 0.1
_SURE = 1.645  # the scale of the tail is taken at the upper end of a 90 % interval
_PERIODS = {"hour": 1.0, "day": 24.0, "week": 168.0, "month": 730.0, "year": 8760.0}
_APART = {
    *("calibration", "threshold_multipliers", "false_pages_per_1000_machine_hours"),
    *("judging_delay_seconds", "reread_seconds", "history_seconds"),
    *("event_incident_seconds", "exit_grace_seconds", "silent_seconds", "missing_rank_seconds"),
    *("min_stall_seconds", "stall_gaps", "zoom_seconds", "zoom_hertz", "standby"),
}
"""Settings on which soft evidence does not depend."""
_Times = Annotated[float, msgspec.Meta(ge=LEAST, le=MOST)]
_Positive = Annotated[float, msgspec.Meta(gt=0)]
_Count = Annotated[int, msgspec.Meta(ge=0)]


class CalibrationError(ValueError):
    """Nothing can be learned from these recordings, or the file cannot be used; one line with the mend."""


class Budget(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """So many false alarms in so many hours among so many machines are tolerated."""

    alarms: _Positive
    hours: _Positive
    machines: _Positive

    @property
    def rate(self) -> float:
        """False alarms per machine-hour."""
        return self.alarms / self.hours / self.machines


class Stream(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The excursions of one reading, by which a detector begins to learn; peaks in multiples of the usual threshold."""

    hours: float
    """Machine-hours in which it was judged."""
    crossed: float
    """Excursions that reached the threshold."""
    peaks: list[float]
    """The highest ones ..."""
    machines: list[_Count]
    """... and numbers of their machines."""
    multiplier: float
    """The threshold that they teach for the budget."""


class Tail(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the excursions of one method say; evidence in multiples of the usual threshold."""

    excursions: _Count
    highest: float
    """The highest peak seen."""
    over: float
    """Where the tail begins ..."""
    scale: float
    """... and by how much higher a bar is exceeded e times more seldom, at the upper end of what the data allow; 0:
    there were too few excursions to tell."""
    heavy: bool
    """Whether the peaks scatter more than an exponential tail's: then the budget is promised too lightly."""
    caution: _Times
    """Multiplier on the alarm threshold from now on."""


class Calibration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `peerwatch calibrate` writes and `detector.calibration` names."""

    version: int
    budget: Budget
    recordings: _Count
    machine_hours: _Positive
    settings: dict[str, Any]
    """Of the detector, those on which evidence depends."""
    tails: dict[str, Tail]
    """By method, where it is not the comparison of peers."""
    tables: dict[str, dict[str, Stream]]
    """By table and reading of the comparison of peers."""

    @property
    def beyond(self) -> float:
        """How many times farther the budget lies than the recordings reach."""
        return 1 / (self.budget.rate * self.machine_hours)


def budget_of(text: str) -> Budget:
    """A budget such as `1/week/1000 machines`. Raises ValueError."""
    found = re.fullmatch(
        rf"\s*(\d+(?:\.\d+)?)\s*/\s*({'|'.join(_PERIODS)})\s*/\s*(\d+)\s*(?:machines?)?\s*", text.replace(",", "")
    )
    if not found or not float(found[1]) or not int(found[3]):
        periods = ", ".join(_PERIODS)
        raise ValueError(f"{text!r} is no budget: write for instance 1/week/1000 machines; a period is {periods}")
    return Budget(float(found[1]), _PERIODS[found[2]], float(found[3]))


def tail_of(peaks: NDArray[np.float64], hours: float, rate: float) -> Tail:
    """The bar that peaks exceed `rate` times a machine-hour, as `peaks` of so many machine-hours show.

    `peaks` [excursion] are in multiples of the usual threshold. Raises CalibrationError where no bar would do.
    """
    ordered = np.sort(peaks)[::-1]
    if len(ordered) < _FEWEST:  # too few to learn from: the bar stays, or goes to where they would not reach it
        highest = float(ordered.max(initial=0.0))
        return Tail(len(ordered), highest, 0.0, 0.0, False, min(max(1.0, 2 * highest), MOST))
    count = max(min(len(ordered) // 2, _TAIL), int(_TAIL_SHARE * len(ordered)))
    over = float(ordered[count])
    excess = ordered[:count] - over
    mean, spread = float(excess.mean()), float(excess.std())
    scale = mean * _at_most(count)
    bar = over + scale * max(0.0, math.log(count / (hours * rate)))
    if bar > MOST:
        raise CalibrationError(f"it would take {bar:.1f} times the usual evidence, more than {MOST:g} is not allowed")
    heavy = spread > mean * (1 + 2 / math.sqrt(count))
    highest, over, scale = (round(value, 4) for value in (float(ordered[0]), over, scale))
    return Tail(len(ordered), highest, over, scale, heavy, round(max(LEAST, bar), 3))


def _at_most(count: int) -> float:
    """The upper confidence bound of an exponential's mean, over the mean of `count` values (after Wilson, Hilferty)."""
    part = 1 / (9 * count)
    return float((1 - part - _SURE * math.sqrt(part)) ** -3)


def settings_of(config: Config) -> dict[str, Any]:
    """The settings on which soft evidence depends, as JSON has them."""
    found = {
        one.name: msgspec.to_builtins(getattr(config, one.name)) for one in fields(config) if one.name not in _APART
    }
    return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}


def fingerprint(config: Config) -> str:
    """The same for all configurations with which evidence means the same."""
    return blake2b(msgspec.json.encode(settings_of(config)), digest_size=8).hexdigest()


def save(calibration: Calibration, file: Path) -> None:
    """Write the file. Raises OSError."""
    file.write_bytes(msgspec.json.format(msgspec.json.encode(calibration), indent=2) + b"\n")


def load(file: Path) -> Calibration:
    """What `save` wrote. Raises CalibrationError."""
    try:
        if file.exists() and (not file.is_file() or file.stat().st_size > MOST_BYTES):
            raise CalibrationError(f"{file} is no file of at most {MOST_BYTES} bytes{_mend(file)}")
        found = msgspec.json.decode(file.read_bytes(), type=Calibration)
    except OSError as error:
        raise CalibrationError(f"{file}: {error.strerror}{_mend(file)}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CalibrationError(f"{file} is no calibration: {str(error).splitlines()[0]}{_mend(file)}") from error
    if found.version != VERSION:
        raise CalibrationError(f"{file} was made by another version of the detector{_mend(file)}")
    return found


def calibrated(config: Config) -> Config:
    """The configuration with the caution that its calibration asks for. Raises CalibrationError."""
    for what, times in config.threshold_multipliers.items():
        if not LEAST <= times <= MOST:
            raise CalibrationError(
                f"detector.threshold_multipliers.{what} is {times:g}: it must lie between {LEAST:g} and {MOST:g}"
            )
    if not config.calibration:
        return config
    file = Path(config.calibration)
    found, now = load(file), settings_of(config)
    for name in sorted(now.keys() | found.settings.keys()):
        if now.get(name) != found.settings.get(name):
            was, is_ = found.settings.get(name), now.get(name)
            raise CalibrationError(f"{file} was made where detector.{name} was {was}, now it is {is_}{_mend(file)}")
    return replace(
        config,
        threshold_multipliers={
            **{what: tail.caution for what, tail in found.tails.items()},
            **config.threshold_multipliers,
        },
    )


def _mend(file: Path) -> str:
    return f"; make it again: peerwatch calibrate RECORDING --out {file}, or take detector.calibration out"
