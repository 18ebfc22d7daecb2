"""The brief: what an alert says beside the verdict, found out without delay of other alerts."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from detector.alerts import briefing as module
from detector.alerts.alert import IncidentTracker
from detector.alerts.briefing import Briefing, brief_of, identity
from detector.alerts.dispatcher import AlertDispatcher
from detector.alerts.text import details
from detector.model.text import compared_with, comparison
from detector.model.verdict import Verdict
from store.schema.contract import StoreError
from store.schema.sample import Batch, Sample
from store.schema.time import SECOND
from store.sqlite.embedded import Embedded
from tests.detector.alerts.test_dispatcher import FLEET, Ear

BEGIN = 1_780_000_000 * SECOND
ONSET = BEGIN + 150 * SECOND
SAID = Verdict(
    ONSET + 20 * SECOND,
    "t9",
    "m3",
    "gpu:1",
    "peer",
    "gpu.sm_clock_hertz",
    3.5,
    ONSET,
    "crit",
    "m3 gpu:1 is the straggler",
)


@pytest.fixture(scope="module")
def hot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five machines of two GPUs; the second of m3 grows hot, is slowed down by heat, and draws less."""
    place = tmp_path_factory.mktemp("hot") / "s.db"
    store = Embedded(place)
    for second in range(0, 175, 2):
        for number in range(5):
            gpus = []
            for gpu in ("0", "1"):
                low = number == 3 and gpu == "1" and second > 150
                row: dict[str, Any] = {
                    "gpu": gpu,
                    "sm_clock_hertz": 1.14e9 if low else 1.95e9 + 1e6 * number,
                    "temperature_celsius": 91.0 if low else 61.0 + number,
                    "throttle_thermal_seconds_total": second - 150.0 if low else 0.0,
                    "power_watts": 410.0 if low else 600.0 + number + second % 7,
                }
                if second % 10 == 0:
                    row |= {
                        "uuid": f"GPU-{number}-{gpu}",
                        "serial": f"16500{number}{gpu}",
                        "pci_address": "0000:3b:00.0",
                    }
                gpus.append(Sample("gpu", row))
            store.write([Batch(f"m{number}", BEGIN + second * SECOND, tuple(gpus))])
    store.close()
    return place


def test_a_brief_has_cause_numbers_hardware_and_next_step(hot: Path) -> None:
    """The brief has the likely kind, both sides of the strongest readings in human units, and the card."""
    store = Embedded(hot, False)
    found = brief_of(store, SAID)
    store.close()
    assert (found.kind, found.peers) == ("gpu_heat", 4)
    assert found.advice.startswith("Look at fans")
    clock = next(number for number in found.numbers if number.metric == "gpu.sm_clock_hertz")
    assert (clock.value, clock.before, clock.usual) == pytest.approx((1.14e9, 1.953e9, 1.9515e9), rel=1e-3)
    assert (clock.text, clock.was) == ("clock of the streaming multiprocessors 1.14 GHz, peers 1.95 GHz", "1.95 GHz")
    assert found.hardware == {"uuid": "GPU-3-1", "serial": "1650031", "pci_address": "0000:3b:00.0"}
    heat = next(number for number in found.numbers if number.metric == "gpu.throttle_thermal_seconds_total")
    assert found.numbers.index(clock) < found.numbers.index(heat)


def test_only_a_gpu_has_a_card(hot: Path) -> None:
    """A whole machine, a port and a GPU that was not read have no identity."""
    store = Embedded(hot, False)
    for device in (None, "rdma:mlx5_0/1", "gpu:7"):
        assert identity(store, "m3", device, ONSET) == {}
    store.close()


def test_alerts_wait_for_their_brief(hot: Path, tmp_path: Path) -> None:
    """Each sink gets beginning and end with what was found out; the first line has cause and figures."""
    ear = Ear()
    dispatcher = AlertDispatcher({"ear": ear}, tmp_path, briefing=Briefing(lambda: Embedded(hot, False)))
    dispatcher.begin([])
    dispatcher.publish([SAID], FLEET, SAID.time)
    ear.wait(1)
    dispatcher.close()
    (alert,) = ear.heard
    clock = "clock of the streaming multiprocessors 1.14 GHz, peers 1.95 GHz"
    assert alert.headline == f"m3 gpu:1 is the straggler. Likely a GPU that is slow by heat: {clock}"
    lines = details(alert)
    assert f"{clock}, before 1.95 GHz" in lines
    assert lines[0] == "since 20:29:10 UTC, compared with 4 other machines, task t9"
    assert "gpu:1: UUID GPU-3-1, serial 1650031, PCI 0000:3b:00.0" in lines
    assert lines[-1] == f"more: peerwatch show {alert.incident}"


def gone() -> Embedded:
    """A store that cannot be opened."""
    raise StoreError("there is no such store")


def broken() -> Embedded:
    """A fault of our own."""
    raise KeyError("since")


@pytest.mark.parametrize(("opened", "why"), [(gone, "there is no such store"), (broken, "since")])
def test_an_alert_goes_out_without_a_brief(
    opened: Callable[[], Embedded], why: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The dispatcher sends an alert without a cause where explaining fails, and the log says why."""
    ear = Ear()
    dispatcher = AlertDispatcher({"ear": ear}, tmp_path, briefing=Briefing(opened))
    dispatcher.begin([])
    with caplog.at_level(logging.WARNING):
        dispatcher.publish([SAID], FLEET, SAID.time)
        ear.wait(1)
    dispatcher.close()
    assert ear.heard[0].headline == "m3 gpu:1 is the straggler"
    assert f"the alert about m3 goes out without its cause: {why}" in caplog.text.replace("'", "")


def test_a_store_that_hangs_holds_up_an_alert_for_seconds_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The alert goes out without a brief after its patience; a flood of others is sent without asking."""
    monkeypatch.setattr(module, "PATIENCE_S", 0.05)
    door = threading.Event()

    def stuck() -> Embedded:
        door.wait(30)
        return gone()

    briefing = Briefing(stuck)
    for number in range(40):
        verdict = Verdict(SAID.time, "t9", f"m{number}", None, "peer", "a.b", 1.5, ONSET, "crit", "odd")
        alert = IncidentTracker().record(verdict)
        assert alert
        briefing.ask(alert)
        assert briefing.enrich(alert) == alert
    assert len(briefing._asked) <= module.MOST_ASKED + 1
    briefing.close()
    door.set()


@pytest.mark.parametrize(
    ("message", "others", "said"),
    [
        (comparison("m3 GPU 1", "gpu.power_watts", 300.0, 410.0, 9), 4, "9 peers among 5 machines"),
        (comparison("m3", "host.cpu_utilization_ratio", 0.9, 0.2, 1), 1, "1 peer among 2 machines"),
        ("m3 GPU 1 fell off the bus", 4, "4 other machines"),
    ],
)
def test_one_number_of_peers(message: str, others: int, said: str) -> None:
    """Alert and report name as many peers as the verdict's message, whatever else is compared."""
    assert compared_with(message, others) == said
