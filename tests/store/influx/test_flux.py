"""Reading by Flux. No real InfluxDB 2 is to be had here: the answers are in the form that its documentation gives."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from store.influx.config import InfluxConfig
from store.influx.flux import InfluxByFlux
from store.open import open_store
from store.schema.contract import StoreError
from tests.store.conftest import rows
from tests.wires import Reply, Scripted

HEAD = "#datatype,string,long,dateTime:RFC3339Nano,string,string,string,double,long,long\r\n"
GPU = (
    HEAD + "#group,false,false,false,true,true,true,false,false,false\r\n"
    ",result,table,_time,gpu,machine,_nth,power_watts,ecc_corrected_total,_row\r\n"
    ",_result,0,2026-11-20T10:16:13.000000007Z,0,rack%25 1,,281.5,41,1\r\n"
    ",_result,1,2026-11-20T10:16:12Z,1,m2,1,,42,1\r\n"
    "\r\n"
    "#datatype,string,long,dateTime:RFC3339Nano,string,string,double,double,string,string\r\n"
    "#group,false,false,false,true,true,false,false,false,false\r\n"
    ",result,table,_time,gpu,machine,novel,power_watts,novel.string,note.string\r\n"
    ',_result,2,2026-11-20T10:16:14.5Z,0,m3,,283.25,seven,"a ""b"", c\r\nd"\r\n'
    "\r\n"
)
SECOND = 1795169772 * 10**9


@pytest.fixture
def script() -> Iterator[Scripted]:
    """A server that follows a script."""
    made = Scripted()
    yield made
    made.close()


def store(script: Scripted, csv: str, status: int = 200) -> tuple[InfluxByFlux, list[str]]:
    """A store of a server with this answer, and the queries that it receives."""
    heard: list[str] = []

    def reply(lines: list[bytes]) -> Reply:
        heard.append(json.loads(lines[0])["query"])
        return status, csv, {"Content-Type": "text/csv"}

    script.reply = reply
    opened = open_store(f"{script.url}/my bucket", config=InfluxConfig(reading="flux", org="us"))
    assert isinstance(opened, InfluxByFlux)
    return opened, heard


def test_rows_come_out_of_the_csv(script: Scripted) -> None:
    """Tables of different columns become one, in order of time, tags and texts as they were written."""
    opened, heard = store(script, GPU)
    assert rows(opened, "gpu", SECOND - 1, SECOND + 9 * 10**9) == [
        {"time": SECOND, "machine": "m2", "gpu": "1", "ecc_corrected_total": 42},
        {"time": SECOND + 10**9 + 7, "machine": "rack% 1", "gpu": "0", "power_watts": 281.5, "ecc_corrected_total": 41},
        {"time": SECOND + 25 * 10**8, "machine": "m3", "gpu": "0", "power_watts": 283.25}
        | {"novel": "seven", "note": 'a "b", c\r\nd'},
    ]
    assert (
        f'from(bucket: "my bucket") |> range(start: time(v: {SECOND}), stop: time(v: {SECOND + 9 * 10**9 + 1}))'
        in heard[0]
    )
    assert '|> filter(fn: (r) => r._measurement == "gpu")' in heard[0]
    assert "pivot(" in heard[0]
    opened.close()


def test_only_chosen_fields_are_asked_for(script: Scripted) -> None:
    """A few columns are a few fields, and the one that every row has."""
    opened, heard = store(script, GPU)
    assert opened.read("gpu", 5, 9, ("power_watts",)).column_names == ["time", "machine", "gpu", "power_watts"]
    assert '(r._field == "_row" or r._field == "power_watts")' in heard[0]
    assert opened.read("gpu", 9, 9).num_rows == 0
    assert len(heard) == 1
    opened.close()


def test_span_and_tables(script: Scripted) -> None:
    """The ends of all rows, and the names of the measurements that are ours; an empty answer is no row."""
    times = (
        "#datatype,string,long,dateTime:RFC3339Nano\r\n#group,false,false,false\r\n,result,table,_time\r\n"
        ",_result,0,2026-11-20T10:16:13.000000007Z\r\n\r\n"
    )
    opened, heard = store(script, times)
    assert opened.span(17) == (SECOND + 10**9 + 7, SECOND + 10**9 + 7)
    assert ["first()" in heard[0], "last()" in heard[1], "time(v: 18)" in heard[0]] == [True, True, True]
    opened.close()
    names = "#datatype,string,long,string\r\n#group,false,false,false\r\n,result,table,_value\r\n"
    names += ",_result,0,host\r\n,_result,0,gpu\r\n"
    opened, heard = store(script, names)
    assert opened.tables() == ("gpu", "host")
    assert "schema.tagValues" in heard[0]
    opened.close()
    opened, _ = store(script, "\r\n")
    assert (opened.span(), opened.tables(), opened.read("gpu").num_rows) == (None, (), 0)
    opened.close()


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (401, '{"code":"unauthorized","message":"unauthorized access"}', "influxdb.token_file"),
        (404, '{"code":"not found","message":"could not find bucket"}', "create the database or bucket"),
        (200, "<html>", "gives no Flux answer"),
        (200, "#datatype,string,string\r\n#group,true,true\r\n,error,reference\r\n,too many,897\r\n", "cannot answer"),
        (200, HEAD + "#group,false\r\n", "Flux answer cannot be read"),
        (200, GPU.replace("281.5", "much"), "Flux answer cannot be read"),
    ],
)
def test_what_goes_wrong_is_said(script: Scripted, status: int, body: str, said: str) -> None:
    """Refusals, errors within an answer, and answers that are none: one line each."""
    opened, _ = store(script, body, status)
    with pytest.raises(StoreError, match=said) as caught:
        opened.read("gpu")
    assert "\n" not in str(caught.value)
    opened.close()
