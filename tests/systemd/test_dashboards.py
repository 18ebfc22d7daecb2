"""What is installed for InfluxDB and Grafana: it parses, and names only what there is."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from detector.alerts.dispatcher import AlertDispatcher
from detector.service.metrics import families_of
from store.exposition.family import INFO
from store.influx.check_statuses import CHECK_ID, FIELDS, MEASUREMENT, TAGS, Status, open_statuses
from store.influx.config import InfluxConfig, address_of
from store.influx.influxql import Influx
from store.influx.server import Server
from store.line_protocol.write import FIELD_KEYS
from store.schema.catalogue import METRICS, TABLES
from store.schema.sample import Batch, Sample
from tests import servers

FOLDER = Path(__file__).parents[2] / "systemd"
FLUX = sorted((FOLDER / "influxdb").glob("*.flux"))
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "grafana" / "dashboard.json").read_text())
OVERVIEW: dict[str, Any] = json.loads((FOLDER / "grafana" / "overview.json").read_text())
PROMETHEUS = ("prometheus-overview.json", "prometheus-machine.json")
ANNOTATION: dict[str, Any] = json.loads((FOLDER / "grafana" / "annotation.json").read_text())
NOW = 1_780_000_000_000_000_007
OPEN, CLOSE = "([{", ")]}"


def columns(table: str) -> set[str]:
    """All names that a query on this table may have."""
    if table == MEASUREMENT:
        return {*TAGS, *FIELDS}
    return {"machine", *TABLES[table].keys, *(metric.name for metric in METRICS.values() if metric.table == table)}


def queries() -> Iterator[str]:
    """All queries of the dashboards for InfluxDB."""
    for model in (DASHBOARD, OVERVIEW):
        yield from (target["query"] for panel in model["panels"] for target in panel["targets"])
    yield from (note["query"] for note in DASHBOARD["annotations"]["list"])
    yield from (one["query"] for one in DASHBOARD["templating"]["list"] if one["type"] == "query")


@pytest.mark.parametrize("query", list(queries()))
def test_queries_name_only_what_there_is(query: str) -> None:
    """Tables and columns are those of the catalogue, or of the statuses."""
    (table,) = re.findall(r'FROM "(\w+)"', query)
    named = set(re.findall(r'"(\w+)"', query)) - {table}
    assert table in TABLES or table == MEASUREMENT
    assert named <= columns(table) | ({table} if table in columns(table) else set())
    assert named
    assert "$timeFilter" in query or query.startswith("SHOW TAG VALUES")


@pytest.mark.parametrize("name", ["dashboard.json", "overview.json", *PROMETHEUS])
def test_panels_have_places_and_numbers(name: str) -> None:
    """Panels have numbers and places of their own and ask the chosen source; each dashboard has its own name."""
    model = json.loads((FOLDER / "grafana" / name).read_text())
    places = [panel["gridPos"] for panel in model["panels"]]
    cells = [(p["x"] + x, p["y"] + y) for p in places for x in range(p["w"]) for y in range(p["h"])]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in model["panels"]}) == len(places)
    targets = [target for panel in model["panels"] for target in panel["targets"]]
    assert {target["datasource"]["uid"] for target in targets} == {"${source}"}
    models = [json.loads(file.read_text()) for file in (FOLDER / "grafana").glob("*.json")]
    assert len({one["uid"] for one in models if "uid" in one}) == 4


def test_dashboards_are_as_they_are_made() -> None:
    """The files are what tools/dashboards.py writes today."""
    made = runpy.run_path(str(FOLDER.parent / "tools" / "dashboards.py"))["dashboards"]()
    assert made == {name: json.loads((FOLDER / "grafana" / name).read_text()) for name in made}


@pytest.mark.parametrize("name", ["overview.json", PROMETHEUS[0]])
def test_an_overview_draws_no_line_for_each_machine(name: str) -> None:
    """What grows with the fleet is a table of at most some hundred rows, and no variable picks all machines."""
    model = json.loads((FOLDER / "grafana" / name).read_text())
    assert [one["name"] for one in model["templating"]["list"]] == ["source"]
    for panel in model["panels"]:
        for target in panel["targets"] if panel["type"] == "timeseries" else ():
            grouped = re.findall(r"by \(([^)]*)\)|GROUP BY (.*)", target.get("expr") or target["query"])
            assert "machine" not in str(grouped)


@pytest.mark.parametrize("name", PROMETHEUS)
def test_prometheus_understands_every_query(name: str, tmp_path: Path) -> None:
    """Promtool parses each query, and each names metrics that agent or detector expose."""
    model = json.loads((FOLDER / "grafana" / name).read_text())
    asked = [target["expr"] for panel in model["panels"] for target in panel["targets"]]
    spoken = [query.replace("$__rate_interval", "1m").replace("$machine", "m1") for query in asked]
    rules = [{"record": f"x:{at}", "expr": query} for at, query in enumerate(spoken)]
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": [{"name": "g", "rules": rules}]}))
    words = [servers.find("promtool", "prometheus"), "check", "rules", str(tmp_path / "rules.yml")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    known = {f"peerwatch_{key.replace('.', '_')}" for key in METRICS} | {f"peerwatch_{table}_info" for table in INFO}
    known |= {f"{family.name}" for family in families_of(shown(tmp_path))}
    known |= {"peerwatch_events_total", "peerwatch_last_reading_timestamp_seconds"}
    assert set(re.findall(r"peerwatch_\w+", " ".join(spoken))) <= known


def shown(folder: Path) -> AlertDispatcher:
    """A dispatcher after a step."""
    made = AlertDispatcher({}, folder)
    made.begin([])
    made.publish([], frozenset(("m1",)), NOW)
    return made


def test_the_dashboard_is_whole() -> None:
    """Variables in queries are known, and tags in a name are grouped by."""
    known = {one["name"] for one in DASHBOARD["templating"]["list"]} | {"timeFilter", "__interval"}
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            assert set(re.findall(r"\$(\w+)", target["query"])) <= known
            grouped = target["query"].partition("GROUP BY")[2]
            assert all(f'"{tag}"' in grouped for tag in re.findall(r"\$tag_(\w+)", target.get("alias", "")))
    assert DASHBOARD["annotations"]["list"] == [ANNOTATION]
    mapped = {ANNOTATION["textColumn"], *ANNOTATION["tagsColumn"].split(",")}
    assert mapped <= set(re.findall(r'"(\w+)"', ANNOTATION["query"].partition("FROM")[0]))


def test_a_real_server_answers_every_query(tmp_path: Path) -> None:
    """InfluxDB 1 understands each query and finds a row, where each table has two for each machine."""
    server = servers.influxd(tmp_path)
    server.start()
    try:
        place = f"{server.url}/peerwatch"
        store = Influx(Server(address_of(place), InfluxConfig(keep_days=36500)))
        for second in (0, 30):
            store.write([Batch("m1", NOW + second * 10**9, tuple(map(filled, TABLES, [second] * len(TABLES))))])
        open_statuses(place).write([Status("m1", "crit", "m1 differs", NOW, 2.5, {"event": "begun"})], NOW)
        for query in queries():
            spoken = query.replace("$timeFilter", f"time >= {NOW} AND time < {NOW + 60 * 10**9}")
            spoken = spoken.replace("$machine", ".*").replace("$__interval", "10s")
            said = server.ask(spoken, "peerwatch").decode()
            assert "error" not in said, (spoken, said)
            assert len(said.splitlines()) >= 2, spoken
    finally:
        server.kill()


def filled(table: str, second: int) -> Sample:
    """A row in which every column has a value."""
    values: dict[str, Any] = {key: f"{key} 1" for key in TABLES[table].keys}
    for metric in METRICS.values():
        if metric.table == table:
            text = "crit" if metric.name == "severity" else "text"
            values[metric.name] = text if metric.kind == "text" else 7 + second
    return Sample(table, values)


def words_of(text: str) -> str:
    """Flux without comments and with its texts emptied, once brackets and quotes are seen to match."""
    bare = re.sub(r"//[^\n]*", "", text)
    bare = re.sub(r'"(?:[^"\\\n]|\\.)*"', '""', bare)
    assert '"' not in bare.replace('""', "")
    stack = []
    for sign in bare:
        if sign in OPEN:
            stack.append(sign)
        elif sign in CLOSE:
            assert stack, "closed but not opened"
            assert stack.pop() == OPEN[CLOSE.index(sign)]
    assert stack == []
    return bare


@pytest.mark.parametrize("file", FLUX, ids=lambda file: file.stem)
def test_flux_is_sound(file: Path) -> None:
    """Brackets and quotes match, packages that are used are imported and the other way round, pipes go on."""
    text = file.read_text()
    bare = words_of(text)
    imported = {path.rpartition("/")[2] for path in re.findall(r'^import "([\w/]+)"$', text, re.MULTILINE)}
    own = {"r", "task", "check"}
    assert set(re.findall(r"(?<![\w.])([a-z]\w*)\.\w", re.sub(r"from\(bucket[^)]*\)", "", bare))) - own == imported
    lines = [line.strip() for line in bare.splitlines() if line.strip()]
    assert not lines[0].startswith("|>")
    assert sum(line.startswith("from(") for line in lines) == 1
    assert re.search(r"^option task = \{name: \"\", every: \d+[smh](, offset: \d+[smh])?\}$", bare, re.MULTILINE)


@pytest.mark.parametrize("file", FLUX, ids=lambda file: file.stem)
def test_flux_names_only_what_there_is(file: Path) -> None:
    """Measurements, fields and tags are those of the catalogue or of the statuses."""
    text = re.sub(r"//[^\n]*", "", file.read_text())
    (table,) = re.findall(r'r\._measurement == "(\w+)"', text)
    known = columns(table) - FIELD_KEYS
    assert set(re.findall(r'r\._field == "(\w+)"', text)) <= known
    assert set(re.findall(r"\br\.([a-z]\w*)", text)) - {"dead"} <= {
        "machine",
        *(TABLES[table].keys if table in TABLES else ()),
    }
    assert 'bucket: "peerwatch"' in text


def test_flux_checks_are_distinct() -> None:
    """The deadman's check has a number and a name of its own, of the form that InfluxDB gives."""
    text = (FOLDER / "influxdb" / "deadman.flux").read_text()
    (number,) = re.findall(r'_check_id: "(\w+)"', text)
    assert re.fullmatch(r"[0-9a-f]{16}", number)
    assert number != CHECK_ID


def test_the_checker_finds_faults() -> None:
    """What is broken in the usual ways does not pass for sound."""
    for broken in ('from(bucket: "x"', 'filter(fn: (r) => r._field == "a)', "range(start: -1h]"):
        with pytest.raises(AssertionError):
            words_of(broken)
