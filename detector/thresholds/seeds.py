"""Seeds: the excursions of recordings, in the form in which a calibration file hands them to a running detector."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from detector.calibration import Stream
from detector.thresholds.excursions import Excursions
from detector.thresholds.fit import fit
from detector.thresholds.history import EVERY_MACHINE, PLACES, History


def streams_of(recordings: Iterable[Mapping[str, History]], rate: float) -> dict[str, dict[str, Stream]]:
    """By table and stream what several recordings say together, and the threshold that it teaches.

    `rate` are the false pages allowed in a machine-hour.
    """
    merged: dict[str, History] = {}
    for number, tables in enumerate(recordings):
        for table, history in tables.items():
            _add(merged.setdefault(table, History()), history, number)
    learned = fit(merged, rate)
    found: dict[str, dict[str, Stream]] = {}
    for table, history in merged.items():
        multiplier = learned[table].multiplier if table in learned else np.ones(len(history.streams))
        found[table] = {name: _packed(history, at, float(multiplier[at])) for at, name in enumerate(history.streams)}
    return found


def _add(merged: History, history: History, number: int) -> None:
    """Add all days of a recording's history as one."""
    for at, name in enumerate(history.streams):
        (place,) = merged.places([name])
        peaks, machines, _ = history.of(at)
        names = [f"{number}/{history.names[machine]}" for machine in machines.tolist()]  # -1, of all, is put back below
        stream, none = np.full(len(peaks), place), np.zeros(len(peaks), np.int64)
        owner = np.where(machines == EVERY_MACHINE, EVERY_MACHINE, merged.numbers(names))
        merged.add(Excursions(stream, owner, peaks, none, none))
        merged.hours[0, place] += history.hours[:, at].sum()
        merged.crossed[0, place] += history.crossed[:, at].sum()


def _packed(history: History, stream: int, multiplier: float) -> Stream:
    peaks, machines, _ = history.of(stream)
    order = np.argsort(-peaks, kind="stable")[:PLACES]
    hours, crossed = (float(part[:, stream].sum()) for part in (history.hours, history.crossed))
    numbers = machines[order].tolist()
    return Stream(round(hours, 4), crossed, peaks[order].round(5).tolist(), numbers, round(multiplier, 3))
