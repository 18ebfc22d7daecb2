"""Metrics for Prometheus: names and units from the catalogue, what is shown, and that its own tool accepts the text."""

from __future__ import annotations

import subprocess

from hypothesis import given
from hypothesis import strategies as st

from store.exposition.family import Family
from store.exposition.latest import FRESH_NS, REPEATED_NS, SERIES, LatestRows
from store.exposition.openmetrics import render
from store.schema.catalogue import METRICS, TABLES
from store.schema.sample import Batch, Sample, Value
from tests.servers import find

NOW = 1_780_000_000_000_000_007
GPU = {"gpu": "3", "power_watts": 411.5, "energy_joules_total": 7.25e9, "ecc_corrected_total": 12, "pcie_width": 16.0}
NAMES = {"uuid": "GPU-5eed", "serial": "1650031", "pci_address": "0000:3b:00.0"}


def shown(*batches: tuple[Sample, ...], openmetrics: bool = True) -> str:
    """What is exposed after these readings, one second apart."""
    latest = LatestRows("m07")
    for at, samples in enumerate(batches):
        latest.receive(Batch("m07", NOW + at * 10**9, samples))
    return render(latest.families(NOW + len(batches) * 10**9), openmetrics).decode()


def everything() -> tuple[Sample, ...]:
    """A row of each table with all columns of the catalogue."""
    rows: dict[str, dict[str, Value]] = {name: dict.fromkeys(table.keys, "k") for name, table in TABLES.items()}
    for at, metric in enumerate(METRICS.values()):
        rows[metric.table][metric.name] = f"text {at}" if metric.kind == "text" else at + 0.5
    return tuple(Sample(name, values) for name, values in rows.items())


def test_names_units_and_labels() -> None:
    """A gauge has its unit, a counter `_total`, a GPU its UUID in each series, also where only an older row had it."""
    lines = shown((Sample("gpu", {**GPU, **NAMES}),), (Sample("gpu", {**GPU, "power_watts": 405.25}),)).splitlines()
    about = 'machine="m07",gpu="3",uuid="GPU-5eed"'
    assert f"peerwatch_gpu_power_watts{{{about}}} 405.25" in lines
    assert f"peerwatch_gpu_energy_joules_total{{{about}}} 7250000000" in lines
    assert "# TYPE peerwatch_gpu_energy_joules counter" in lines
    assert "# UNIT peerwatch_gpu_energy_joules joules" in lines
    assert 'peerwatch_rdma_rate_bytes_per_second{machine="m07",port="p/1"} 25000000000' in shown(
        (Sample("rdma", {"port": "p/1", "rate_bits_per_second": 2e11}),)
    )
    assert "# HELP peerwatch_gpu_power_watts power draw" in lines
    assert f'peerwatch_gpu_info{{{about},serial="1650031",pci_address="0000:3b:00.0"}} 1' in lines
    assert lines[-1] == "# EOF"


def test_the_older_format() -> None:
    """A reader that does not ask for OpenMetrics gets counters and info metrics by their full names."""
    text = shown((Sample("gpu", {**GPU, **NAMES}),), openmetrics=False)
    assert "# TYPE peerwatch_gpu_energy_joules_total counter" in text
    assert "# TYPE peerwatch_gpu_info gauge" in text
    assert "UNIT" not in text
    assert "EOF" not in text


def test_what_is_not_read_any_more_disappears() -> None:
    """A device that is not read for half a minute is no longer exposed; what is written once a minute stays longer."""
    latest = LatestRows("m07")
    latest.receive(Batch("m07", NOW, (Sample("gpu", GPU), Sample("job", {"gpu": "3", "job_id": "61"}))))
    found = [{one.name for one in latest.families(NOW + age)} for age in (FRESH_NS, FRESH_NS + 1, REPEATED_NS + 1)]
    assert [("peerwatch_gpu_power_watts" in names, "peerwatch_job" in names) for names in found] == [
        (True, True),
        (False, True),
        (False, False),
    ]
    assert "peerwatch_last_reading_timestamp_seconds" in found[2]


def test_events_are_counted() -> None:
    """Events add up by source, code and severity."""
    event = {"source": "kernel_log", "code": "xid:79", "severity": "crit", "message": "GPU 3 has fallen off the bus"}
    text = shown((Sample("event", event),), (Sample("event", event), Sample("event", {**event, "code": "oom_kill"})))
    assert 'peerwatch_events_total{machine="m07",source="kernel_log",code="xid:79",severity="crit"} 2' in text
    assert "fallen" not in text


def test_series_are_bounded() -> None:
    """However many devices a machine invents, what is remembered of it has an end."""
    latest = LatestRows("m07")
    ports = tuple(Sample("rdma", {"port": f"p{at}/1", "link_up": 1.0}) for at in range(SERIES + 500))
    events = tuple(Sample("event", {"source": "s", "code": f"c{at}"}) for at in range(SERIES + 500))
    latest.receive(Batch("m07", NOW, (*ports, *events)))
    assert sum(len(family.points) for family in latest.families(NOW)) == 2 * SERIES + 1


def test_promtool_accepts_everything() -> None:
    """Every metric of the catalogue passes promtool's check of form and names, labels with hostile text included."""
    name = {"gpu": '0"} 1\npeerwatch_forged 7\n# EOF', "uuid": "\x1b[2J\\\udc80" + "y" * 5000, "power_watts": 1.5}
    text = shown((*everything(), Sample("gpu", name)), openmetrics=False)
    checked = subprocess.run(
        [find("promtool", "prometheus"), "check", "metrics"],
        input=text.encode(),
        capture_output=True,
        check=False,
    )
    assert checked.stderr == b""
    assert checked.returncode == 0
    assert len(text.splitlines()) > 300
    assert not any(line.startswith("peerwatch_forged") for line in text.splitlines())
    assert max(map(len, text.splitlines())) < 2500


@given(st.text(max_size=50), st.floats())
def test_any_label_stays_one_line(text: str, value: float) -> None:
    """Whatever a name holds, a point is one line; a value that is no number is left out."""
    family = Family("peerwatch_x", "gauge", "help")
    family.add({"name": text}, value, NOW)
    lines = render([family], openmetrics=False).decode().split("\n")
    assert len(lines) == (4 if value - value == 0 else 1)
