"""`peerwatch history`: machines and cards over weeks, and which are lemons."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from store.schema.sample import Batch, Sample
from store.sqlite.embedded import Embedded
from tests.cli.conftest import SECOND, host, one_line, run

DAY = 86_400 * SECOND
END = 1_790_000_000 * SECOND


def verdict(machine: str, days_ago: float, level: str = "crit", device: str = "gpu:2") -> Batch:
    """A row that the detector wrote so many days before the end."""
    at = END - round(days_ago * DAY)
    values: dict[str, Any] = {"task": "t1", "device": device, "kind": "peer", "metric": "gpu.sm_clock_hertz"}
    values |= {"score": 5.5, "since": at - 17 * SECOND, "level": level, "message": f"{machine} {device} is slow"}
    return Batch(machine, at, (Sample("verdict", values),))


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    """Sixty machines; m07 has seven incidents of one card, which then moves to m08 for one more; m20 has one."""
    path = tmp_path / "s.db"
    store = Embedded(path)
    store.write([host(f"m{n:02}", END, 0.5) for n in range(60)])
    store.write([host("m00", END - 28 * DAY + 5, 0.5)])
    for back in (27.0, 24.5, 22.0, 19.5, 17.0, 14.5, 12.0):
        store.write([verdict("m07", back), verdict("m07", back - 0.1, "ok")])
    store.write([verdict("m08", 3), verdict("m08", 2.9, "ok"), verdict("m20", 5, "warn", "gpu:0")])
    for machine, back, serial in (("m07", 27.9, "S-771"), ("m07", 9.0, "S-999"), ("m08", 9.0, "S-771")):
        row = Sample("card", {"gpu": "2", "uuid": f"GPU-{serial}", "serial": serial})
        store.write([Batch(machine, END - round(back * DAY), (row,))])
    order = {"source": "operator", "code": "maintenance", "severity": "info", "message": "swap", "until": END - 9 * DAY}
    note = {"source": "detector", "code": "note", "severity": "info", "message": "m07 writes more to its disk"}
    store.write([Batch("m07", END - 10 * DAY, (Sample("event", order),))])
    store.write([Batch("m07", END - 6 * DAY, (Sample("event", note),))])
    store.close()
    return path


def found(path: Path, *words: str) -> Any:
    """What --json prints."""
    done = run("history", *words, "--json", "--store", path)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_lemon_is_named_with_its_base_rate(fleet: Path) -> None:
    """One machine stands out; the base rate counts machines without incidents, and hours without maintenance."""
    shown = found(fleet)
    assert (shown["lemons"], len(shown["machines"])) == (["m07"], 60)
    first = shown["machines"][0]
    assert (first["machine"], first["troubles"], first["lemon"]) == ("m07", 7, True)
    assert first["hours"] == pytest.approx(27 * 24, abs=0.1)
    assert pytest.approx(shown["base_rate_per_1000_hours"], rel=0.2) == 9 / 60 / 672 * 1000
    assert shown["base_rate_per_1000_hours"] < first["rate_per_1000_hours"] < 7 / 648 * 1000
    assert shown["expected_false_share"] < 0.05


def test_a_card_takes_its_incidents_along(fleet: Path) -> None:
    """The swapped card has all eight incidents, in both machines."""
    (card,) = found(fleet)["cards"]
    assert card["serial"] == "S-771"
    assert [one["machine"] for one in card["incidents"]] == [*["m07"] * 7, "m08"]
    assert "card S-771: 8 incidents, in m07 gpu:2, then m08 gpu:2" in run("history", "--store", fleet).stdout


def test_one_machine(fleet: Path) -> None:
    """The page lists incidents, notes and maintenance of the machine in order of time."""
    done = run("history", "m07", "--store", fleet)
    lines = done.stdout.splitlines()
    assert "m····" not in lines[1]
    assert lines[1].count("█") == 7
    assert lines[1].count("m") == 2  # the name, and the maintenance
    assert "7 separate incidents in 648 h" in lines[2]
    dated = [line for line in lines if line[:4] == "2026"]
    assert len(dated) == 9
    assert dated[7].endswith("the operator: maintenance (swap)")
    assert dated[8].endswith("note: m07 writes more to its disk")
    only = found(fleet, "m07")
    assert [one["machine"] for one in only["machines"]] == ["m07"]
    assert only["machines"][0]["incidents"][0]["serial"] == "S-771"


def test_windows_and_errors(fleet: Path, tmp_path: Path) -> None:
    """--days shortens the window, --until moves it; unknown machines and empty stores are one line."""
    assert found(fleet, "--days", "7")["machines"][0]["machine"] in ("m08", "m20")
    early = found(fleet, "--until", str(END - 20 * DAY))
    assert sum(one["troubles"] for one in early["machines"]) == 3
    assert "has no machine m99" in one_line(run("history", "m99", "--store", fleet), 1)
    Embedded(tmp_path / "empty.db").close()
    assert "holds no reading yet" in one_line(run("history", "--store", tmp_path / "empty.db"), 1)


def test_an_alert_and_show_say_that_it_happened_before(fleet: Path) -> None:
    """`show` has the count of earlier incidents of the card, in text and JSON."""
    done = run("show", "m08", "--store", fleet)
    assert "has done this before: 7 times in 28 days" in done.stdout
    assert "the same card, then in m07" in done.stdout
    shown = json.loads(run("show", "m08", "--json", "--store", fleet).stdout)
    assert (shown["earlier"]["times"], shown["earlier"]["elsewhere"]) == (7, ["m07"])
