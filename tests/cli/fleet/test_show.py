"""`peerwatch show` and `peerwatch report verdict`: verdicts by name, in words, as JSON, and as a page of its own."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cli.main import app
from cli.queries.probes import read_uncounted
from cli.queries.verdict_history import complete, group_verdicts, read_verdicts
from cli.views.verdict_screen import folded
from detector.alerts.alert import IncidentTracker
from detector.model.verdict import Level, Verdict
from store.schema.sample import Batch, Sample
from store.signed import key_of
from store.sqlite.embedded import Embedded
from tests.cli.conftest import SECOND, one_line, run

BEGIN = 1_780_000_000 * SECOND
ONSET = BEGIN + 150 * SECOND
VOID = {"meta", "br", "img", "link", "input", "hr"}
CALLS = {"kind": "progress", "metric": "nccl.active_ratio"}
RUDE = '<script>alert("m3")</script> & its peers'


def said(machine: str, after_s: int, level: str, message: str = "its clock is low") -> Batch:
    """A row that the detector wrote so long after the onset."""
    values: dict[str, Any] = {
        "task": "all",
        "kind": "peer",
        "metric": "gpu.sm_clock_hertz",
        "score": 4.5,
        "since": ONSET,
    }
    row = Sample("verdict", {**values, "device": "gpu:1", "level": level, "message": message})
    return Batch(machine, ONSET + after_s * SECOND, (row,))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Five machines of two GPUs; the clock of the second one of m3 falls, and so does its power, ten seconds later."""
    path = tmp_path / "s.db"
    store = Embedded(path)
    for second in range(0, 300, 2):
        for number in range(5):
            bent = number == 3 and second > 150
            gpus = []
            for gpu in ("0", "1"):
                low = bent and gpu == "1"
                clock = 1.2e9 if low else 1.9e9 + 1e6 * number
                power = 310.0 if low and second > 160 else 500.0 + number + second % 7
                names = {"uuid": f"GPU-{number}-{gpu}", "pci_address": "0000:3b:00.0"} if second % 20 == 0 else {}
                gpus.append(Sample("gpu", {"gpu": gpu, "sm_clock_hertz": clock, "power_watts": power, **names}))
            store.write([Batch(f"m{number}", BEGIN + second * SECOND, tuple(gpus))])
    event = {"source": "kernel_log", "code": "xid:13", "severity": "warn", "device": "gpu:1", "message": RUDE}
    store.write([said("m1", -60, "warn"), said("m1", -40, "ok"), Batch("m3", ONSET, (Sample("event", event),))])
    store.write([said("m3", 20, "warn"), said("m3", 40, "crit", RUDE), said("m3", 120, "ok")])
    store.close()
    return path


def test_the_list(place: Path) -> None:
    """Each incident is one line with its number; a cleared one has its end."""
    done = run("show", "--store", place)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()[1:3]
    assert first.split()[:6] == ["1", "2026-05-28", "20:28:10", "warn", "m1", "gpu:1"]
    assert second.split()[0] == "2"
    assert second.split()[3:5] == ["crit", "m3"]
    found = json.loads(run("show", "--json", "--store", place).stdout)
    assert [(row["number"], row["level"], row["name"]) for row in found] == [
        (1, "warn", "2026-05-28T20:28:10/m1"),
        (2, "crit", "2026-05-28T20:29:30/m3"),
    ]
    assert found[0]["over"] == ONSET - 40 * SECOND


@pytest.mark.parametrize("word", ["2", "#2", "m3", "2026-05-28T20:29:30/m3", "2026-05-28T20:29:50/m3"])
def test_names(place: Path, word: str) -> None:
    """A verdict is called by number, by its machine, or by the time of any of its words and its machine."""
    found = json.loads(CliRunner().invoke(app, ["show", word, "--json", "--store", str(place)]).stdout)
    assert (found["number"], found["machine"], found["level"], found["over"]) == (2, "m3", "crit", ONSET + 120 * SECOND)


def test_the_key_of_an_alert(place: Path) -> None:
    """The key in an alert names its incident, here one that was raised twice; an unknown key names none."""
    store = Embedded(place)
    store.write([said("m3", 180, "crit", "its clock is low again")])  # soon after: the same incident
    store.close()
    incidents = IncidentTracker()
    words: list[tuple[int, Level]] = [(20, "warn"), (40, "crit"), (120, "ok"), (180, "crit")]
    for after_s, level in words:
        at = ONSET + after_s * SECOND
        alert = incidents.record(
            Verdict(at, "all", "m3", "gpu:1", "peer", "gpu.sm_clock_hertz", 4.5, ONSET, level, "low")
        )
    assert alert
    assert alert.event == "changed"
    found = json.loads(CliRunner().invoke(app, ["show", alert.incident, "--json", "--store", str(place)]).stdout)
    assert (found["number"], found["machine"], found["message"]) == (3, "m3", "its clock is low again")
    done = CliRunner().invoke(app, ["show", "0123456789abcdef", "--store", str(place)])
    assert (done.exit_code, "has no verdict 0123456789abcdef" in done.output) == (1, True)


def test_the_gpu_is_named(place: Path, tmp_path: Path) -> None:
    """Text, JSON and page name the GPU that may have to be replaced by its UUID and PCI address."""
    assert "hardware  UUID GPU-3-1, PCI 0000:3b:00.0" in run("show", "2", "--store", place).stdout
    found = json.loads(run("show", "2", "--json", "--store", place).stdout)
    assert found["hardware"] == {"uuid": "GPU-3-1", "pci_address": "0000:3b:00.0"}
    run("report", "verdict", "2", "--html", tmp_path / "page.html", "--store", place)
    assert "UUID GPU-3-1, PCI 0000:3b:00.0" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize("word", ["3", "m9", "2026-05-28T20:29:31/m3", "2026-05-28T20:29:30/m1"])
def test_unknown_names(place: Path, word: str) -> None:
    """A name that nothing has is refused in one line that names others."""
    done = CliRunner().invoke(app, ["show", word, "--store", str(place)])
    assert (done.exit_code, done.output.count("\n")) == (1, 1)
    assert "name one of 1 to 2, or such as 2026-05-28T20:29:30/m3" in done.output


def test_the_numbers(place: Path) -> None:
    """The object has both sides of each reading that moved, in order of onset, with curves; and the time line."""
    found = json.loads(run("show", "m3", "--json", "--store", place).stdout)
    clock, power = found["moved"]
    assert (clock["metric"], clock["device"], clock["value"]) == ("gpu.sm_clock_hertz", "gpu:1", 1.2e9)
    assert (clock["devices_alike"], clock["devices"], clock["peers"]) == (1, 2, 4)
    assert clock["usual"] == pytest.approx(1.9015e9, rel=1e-3)
    assert (power["metric"], power["before"]) == ("gpu.power_watts", pytest.approx(506, abs=1.5))
    assert clock["onset"] < power["onset"]
    assert len(clock["time"]) == len(clock["machine"]) == len(clock["peers_p10"]) == len(clock["peers_p90"])
    assert found["likely"]["kind"] == "software_crash"  # Xid 13 is a program's
    assert found["runners_up"] == []  # no other machine's clock moved at all
    lines = [row["what"] for row in found["timeline"]]
    assert [line.split(":")[0] for line in lines][-3:] == ["warn", "crit", "resolved"]
    assert [line.split(": ")[1] for line in lines if line.startswith("differs")] == [
        "clock of the streaming multiprocessors down",
        "power draw down",
    ]


def test_in_words(place: Path) -> None:
    """People see the message, kind, next step, curves, time line; words from outside are printed as they are."""
    done = run("show", "2", "--store", place)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == f"crit: {RUDE}"
    assert any(line.startswith("likely    software: a process of the task ended") for line in lines)
    row = next(line for line in lines if "gpu.sm_clock_hertz" in line)
    assert "█" in row
    assert "1.2 GHz" in row
    assert f"event xid:13 gpu:1 (warn): {RUDE}" in done.stdout


def test_a_narrow_terminal(place: Path) -> None:
    """A terminal of 80 columns gets whole curves, and long names over several lines: nothing is cut."""
    done = run("show", "1", "--store", place, COLUMNS="80", FORCE_COLOR="1", NO_COLOR="1")
    said = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)
    assert "its peers  effect" in said
    assert "…" not in said
    assert max(map(len, said.splitlines())) <= 80
    assert folded("nccl.host_blocked_seconds_total", 18) == ["nccl.host_blocked_", "seconds_total"]
    assert folded("gpu.sm_clock_hertz", 9) == ["gpu.sm_", "clock_", "hertz"]


def test_probes_that_were_off_are_said(place: Path, tmp_path: Path) -> None:
    """A verdict on calls comes with the probes on its machine that were suspended then; one on readings does not.

    So does its page. One on waits comes with the tracepoint that counts them.
    """
    store = Embedded(place)
    suspended = "probes on its calls are suspended: a process calls it 91000 times a second"
    for name, why in (("m3", suspended), ("m1", "probes on its launches are sampled, on 31% of the time"), ("m2", "")):
        row = {"library": "libnccl.so.2", "state": "on", "reason": why or None, "suspended": float(bool(why))}
        store.write([Batch(name, ONSET + 150 * SECOND, (Sample("probe", row),))])
    resting = "GPU 1: probes on its switches of threads are suspended: they take 1.31% of a core"
    row = Sample("probe", {"library": "tracepoint sched_switch", "state": "on", "reason": resting, "suspended": 1.0})
    store.write([Batch("m3", ONSET + 151 * SECOND, (row,))])
    (row,) = said("m3", 190, "crit").samples
    store.write([Batch("m3", ONSET + 190 * SECOND, (replace(row, values={**row.values, **CALLS}),))])
    on_calls = read_verdicts(store, str(place))[-1].verdict
    on_waits = replace(on_calls, kind="peer", metric="process.cpu_wait_seconds_total")
    assert read_uncounted(store, on_waits) == (f"tracepoint sched_switch on m3: {resting}",)
    store.close()
    assert f"probes    libnccl.so.2 on m3: {suspended}" in run("show", "3", "--store", place).stdout
    found = json.loads(run("show", "3", "--json", "--store", place).stdout)
    assert found["uncounted"] == [f"libnccl.so.2 on m3: {suspended}"]
    assert json.loads(run("show", "2", "--json", "--store", place).stdout)["uncounted"] == []
    pages = {number: tmp_path / f"{number}.html" for number in ("2", "3")}
    for number, file in pages.items():
        run("report", "verdict", number, "--html", file, "--store", place)
    assert f"<dt>Probes</dt><dd>libnccl.so.2 on m3: {suspended}</dd>" in pages["3"].read_text()
    assert "<dt>Probes</dt>" not in pages["2"].read_text()


def test_a_page_that_cannot_be_written(place: Path, tmp_path: Path) -> None:
    """One line names the file and the cause."""
    file = tmp_path / "absent" / "v.html"
    error = one_line(run("report", "verdict", "2", "--html", file, "--store", place), 1)
    assert f"{file} cannot be written: No such file or directory" in error


class Reader(HTMLParser):
    """Checks that tags are closed in order, and gathers what is there."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note it."""
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what has no content."""
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        """It must end what was opened last."""
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Gather words."""
        self.words.append(data)


def test_the_page(place: Path, tmp_path: Path) -> None:
    """The page is well-formed, needs nothing else, escapes what comes from outside, and draws each curve."""
    file = tmp_path / "v.html"
    done = run("report", "verdict", "m3", "--html", file, "--store", place)
    assert done.returncode == 0, done.stderr
    text = file.read_text(encoding="utf-8")
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert reader.open == []
    tags = [tag for tag, _ in reader.seen]
    assert not {"script", "link", "img", "iframe", "object"} & set(tags)
    assert not any({"src", "href", "onload", "onclick"} & set(attrs) for _, attrs in reader.seen)
    assert "url(" not in text
    assert "@import" not in text
    assert RUDE in "".join(reader.words)
    assert (tags.count("figure"), tags.count("svg")) == (2, 2)
    assert all(name in text for name in ("prefers-color-scheme:dark", "@media print", "width=device-width"))
    assert "default-src 'none'" in text
    for live_display in ET.fromstring(text.split("\n", 1)[1]).iter("svg"):  # noqa: S314 - our own words
        assert [path.get("d") for path in live_display.iter("path") if path.get("class") == "mine"] != [""]
        assert not any(word in ET.tostring(live_display, "unicode") for word in ("nan", "inf "))


@pytest.fixture
def hang(tmp_path: Path) -> Path:
    """A store with five machines: their ranks stand still, m3 elsewhere than the others, m4 without a stack."""
    path = tmp_path / "hang.db"
    store = Embedded(path)
    for number in range(5):
        late = number == 3
        nccl = {"gpu": "1", "slot": "0", "comm": "c0ffee0123", "rank": number, "ranks": 5, "pid": 70 + number}
        nccl |= {"operation": "AllReduce:f32:9", "operations_total": 11 - late, "pending": float(not late)}
        nccl |= {"waits_to_receive_from": -1.0 if late else float((number - 1) % 5), "waits_to_send_to": -1.0}
        stack = {"gpu": "1", "pid": 70 + number, "form": "python", "waits_in": "sleeps in read", "still_seconds": 8.5}
        stack |= {"stack": f"{RUDE} (train.py:3)\nmain (train.py:9)" if late else "wait (train.py:5)"}
        if number == 4:
            stack |= {"form": "none", "stack": None, "error": "it has ended"}
        store.write([Batch(f"m{number}", ONSET + 11 * SECOND, (Sample("nccl", nccl), Sample("stack", stack)))])
    values = {"task": "all", "kind": "progress", "metric": "nccl.operations_total", "score": 1.0, "since": ONSET}
    row = Sample("verdict", {**values, "device": "gpu:1", "level": "crit", "message": "it never entered"})
    store.write([Batch("m3", ONSET + 12 * SECOND, (row,))])
    store.close()
    return path


def test_a_hang_in_words(hang: Path) -> None:
    """Text shows the state and the stack of each rank, the odd one first, and prints frames as they are."""
    done = run("show", "1", "--store", hang)
    assert done.returncode == 0, done.stderr
    text = done.stdout
    story = text[text.index("state of the ranks") :].splitlines()
    assert story[1:4] == [
        "communicator c0ffee01, 5 ranks",
        "  ranks 0-2, 4 (m0, m1, m2, m4): AllReduce (f32 × 9), 11 operations; waits for a chunk",
        "  rank 3 (m3 gpu:1): AllReduce (f32 × 9), 10 operations; idle",
    ]
    assert story[5:] == [
        "stacks of 5 ranks, numbered as in the largest communicator",
        "deviates: rank 3 (m3 gpu:1), after 8 s without an operation; sleeps in read",
        f"    {RUDE} (train.py:3)",
        "    main (train.py:9)",
        "ranks 0-2 (m0, m1, m2), after 8 s without an operation; sleeps in read",
        "    wait (train.py:5)",
        "rank 4 (m4 gpu:1): no stack, it has ended",
        "",
        f"as an HTML page: peerwatch report verdict 1 --html FILE --store {hang}",
    ]


def test_a_hang_as_an_object_and_as_a_page(hang: Path, tmp_path: Path) -> None:
    """The object names ranks by machine, GPU and process; the page has the same words, escaped."""
    found = json.loads(run("show", "m3", "--json", "--store", hang).stdout)
    usual, odd, unread = found["stacks"]
    assert [group["odd"] for group in (usual, odd, unread)] == [False, True, False]
    assert odd["ranks"] == [{"machine": "m3", "gpu": "1", "pid": 73, "rank": 3}]
    assert odd["stack"] == [f"{RUDE} (train.py:3)", "main (train.py:9)"]
    assert (unread["form"], unread["error"]) == ("none", "it has ended")
    front, back = found["communicators"]
    assert (front["state"], front["operations"], len(front["ranks"])) == ("receives", 11, 4)
    assert (back["state"], back["operations"], back["communicator_ranks"]) == ("rests", 10, 5)
    file = tmp_path / "v.html"
    assert run("report", "verdict", "1", "--html", file, "--store", hang).returncode == 0
    reader = Reader()
    reader.feed(file.read_text(encoding="utf-8"))
    assert reader.open == []
    words = "".join(reader.words)
    assert f"{RUDE} (train.py:3)\nmain (train.py:9)" in words
    assert "deviates: rank 3 (m3 gpu:1), after 8 s without an operation; sleeps in read" in words
    assert words.index("State and stacks of the ranks") < words.index("What changed") < words.index("Timeline")


def test_a_recording_without_verdicts(tmp_path: Path) -> None:
    """A recording that no detector has seen is replayed, and its verdict explained, whether there is a key or not."""
    made = CliRunner().invoke(
        app,
        ["simulate", str(tmp_path / "r"), "--machines=5", "--gpus=1", "--minutes=5", "--fault=slow_gpu", "--seed=9"],
    )
    assert made.exit_code == 0, made.output
    done = run("show", "1", "--json", "--store", tmp_path / "r")
    assert "replaying it first" in done.stderr
    fault = json.loads((tmp_path / "r" / "labels.json").read_text())["faults"][0]
    found = json.loads(done.stdout)
    assert (found["machine"], found["likely"]["kind"]) == (fault["machine"], "gpu_heat")
    key_of(tmp_path / "r.key", create=True)
    assert "replaying it first" in run("show", "1", "--store", tmp_path / "r").stderr


def test_nothing_to_show(tmp_path: Path) -> None:
    """A store without a verdict says so, and what writes them."""
    Embedded(tmp_path / "s.db").close()
    assert "holds no verdict" in run("show", "--store", tmp_path / "s.db").stdout
    assert "peerwatch detector" in one_line(run("show", "1", "--store", tmp_path / "s.db"), 1)
    words = ("report", "verdict", "1", "--store", tmp_path / "s.db", "--html", tmp_path / "v.html")
    assert "holds no verdict" in one_line(run(*words), 1)
    assert "is no store" in one_line(run("show", "--store", tmp_path / "absent"), 1)


def test_one_incident_until_it_is_cleared() -> None:
    """Verdicts on one machine of one task are one incident until "ok", with the gravest message; tasks are separate."""

    def word(at: int, task: str, level: Level) -> Verdict:
        return Verdict(at * SECOND, task, "m1", None, "peer", "gpu.power_watts", 2.5, 3, level, f"{level} at {at}")

    words = [word(5, "a", "crit"), word(6, "b", "warn"), word(7, "a", "warn"), word(8, "a", "ok"), word(9, "a", "warn")]
    found = group_verdicts(words)
    assert [(one.verdict.message, one.closed) for one in found] == [
        ("crit at 5", 8 * SECOND),
        ("warn at 6", None),
        ("warn at 9", None),
    ]
    assert [one.number for one in found] == [1, 2, 3]


def test_completion(place: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The shell is offered numbers with their words, the latest first; a store that is not there is no error."""
    monkeypatch.setenv("PEERWATCH_STORE", str(place))
    assert complete("") == [("2", RUDE), ("1", "its clock is low")]
    assert complete("1") == [("1", "its clock is low")]
    monkeypatch.setenv("PEERWATCH_STORE", str(tmp_path / "absent.db"))
    assert complete("") == []
