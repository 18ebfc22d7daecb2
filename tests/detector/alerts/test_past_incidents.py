"""Earlier incidents: how often a machine, or its card, did the same before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from detector.alerts.alert import IncidentTracker
from detector.alerts.briefing import brief_of
from detector.alerts.past_incidents import DAY_NS, Earlier, earlier, read_cards, read_incidents
from detector.alerts.text import details
from detector.model.verdict import Verdict
from detector.model.verdict_rows import batch_of
from store.schema.sample import Batch, Sample
from store.schema.time import SECOND
from store.sqlite.embedded import Embedded

NOW = 1_790_000_000 * SECOND
CLOCK, POWER = "gpu.sm_clock_hertz", "gpu.power_watts"


def verdict(days_ago: float, machine: str = "m3", metric: str = CLOCK, device: str = "gpu:1") -> Verdict:
    """A critical verdict so many days before NOW."""
    at = NOW - round(days_ago * DAY_NS)
    return Verdict(at, "t5", machine, device, "peer", metric, 4.5, at - 30 * SECOND, "crit", f"{machine} is slow")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Embedded]:
    """An empty store."""
    opened = Embedded(tmp_path / "s.db")
    yield opened
    opened.close()


def happened(store: Embedded, *verdicts: Verdict) -> None:
    """Write verdicts that each ended after an hour."""
    for one in verdicts:
        over = Verdict(
            one.time + 3600 * SECOND, "t5", one.machine, one.device, "peer", one.metric, 0.0, one.since, "ok", "is well"
        )
        store.write([batch_of(one), batch_of(over)])


def card(store: Embedded, days_ago: float, machine: str, serial: str) -> None:
    """Write that from then on the machine's second GPU is this card."""
    row = Sample("card", {"gpu": "1", "uuid": f"GPU-{serial}", "serial": serial})
    store.write([Batch(machine, NOW - round(days_ago * DAY_NS), (row,))])


def test_the_same_reading_counts_and_others_are_named_apart(store: Embedded) -> None:
    """Incidents of 28 days with the same reading are counted; other ones, older ones and other machines' are not."""
    happened(store, verdict(30), verdict(20), verdict(9), verdict(4), verdict(6, metric=POWER), verdict(5, "m8"))
    now = verdict(0)
    found = earlier(store, now, now.since)
    assert (found.times, found.others, found.last) == (3, 1, verdict(4).since)
    assert found.words == ("has done this before: 3 times in 28 days, last on 2026-09-17 14:12 UTC; 1 other incident")


def test_the_incident_itself_is_no_earlier_one(store: Embedded) -> None:
    """An incident that is still open, and its own first verdict, do not count."""
    store.write([batch_of(verdict(2)), batch_of(verdict(0))])
    now = verdict(0)
    assert earlier(store, now, now.since) == Earlier()


def test_a_swapped_card_takes_its_history_along(store: Embedded) -> None:
    """The incidents of a swapped card follow it to the new machine and leave the old slot."""
    card(store, 25, "m3", "1650031")
    card(store, 24, "m8", "1650082")
    happened(store, verdict(20), verdict(18), verdict(17, "m8"))
    card(store, 10, "m8", "1650031")
    card(store, 10, "m3", "1650099")
    now = verdict(0, "m8")
    found = earlier(store, now, now.since)
    assert (found.times, found.elsewhere) == (2, ("m3",))
    assert "the same card, then in m3" in found.words
    old = verdict(0, "m3")
    assert earlier(store, old, old.since).times == 0


def test_alerts_say_it(store: Embedded) -> None:
    """The brief of an alert has the line, and its JSON the numbers."""
    happened(store, verdict(3), verdict(2))
    now = verdict(0)
    store.write([batch_of(now)])
    brief = brief_of(store, now)
    assert brief.as_json()["earlier"] == {
        "times": 2,
        "last": verdict(2).since,
        "others": 0,
        "elsewhere": [],
        "days": 28,
    }
    alert = IncidentTracker().record(now)
    assert alert is not None
    from dataclasses import replace

    assert any("has done this before: 2 times in 28 days" in line for line in details(replace(alert, brief=brief)))


def test_cards_and_incidents_of_an_empty_store(store: Embedded) -> None:
    """A store without verdicts and cards has no incidents, and knows no serial number."""
    assert read_incidents(store, 0, NOW) == []
    assert read_cards(store, 0, NOW).serial("m3", "gpu:1", NOW) == ""
