"""`peerwatch evaluate`, `peerwatch import`, and sets from `peerwatch simulate --many`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from tests.cli.conftest import one_line, run
from tests.cli.data.test_replay import fleet


def labelled(folder: Path, slow: str | None) -> Path:
    """The fleet of replay's tests with its labels."""
    fleet(folder, slow)
    fault = {"machine": slow, "device": "gpu:0", "kind": "slow_gpu", "start": 300 * 10**9, "end": 600 * 10**9}
    (folder / "labels.json").write_text(json.dumps({"machines": 8, "faults": [fault] if slow else []}))
    return folder


def test_methods_side_by_side(tmp_path: Path) -> None:
    """The command prints figures of each method over all recordings of a folder, as a table and as one object."""
    labelled(tmp_path / "set" / "a", "m5")
    labelled(tmp_path / "set" / "b", None)
    words = ("evaluate", tmp_path / "set", "--methods", "peerwatch,median")
    done = run(*words, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    ours = found["methods"]["peerwatch"]
    assert (ours["recordings"], ours["precision"], ours["recall"], ours["right_device"]) == (2, 1.0, 1.0, 1.0)
    assert 0 < ours["delay_median_s"] < found["methods"]["median"]["delay_median_s"]
    assert ours["by_kind"]["slow_gpu"]["found"] == 1
    shown = run("evaluate", tmp_path / "set" / "a", "--methods", "median", "--failures", "--grace", "30").stdout
    assert all(word in shown for word in ("median", "F1", "slow_gpu", "to 8")), shown


def test_a_page_with_charts(tmp_path: Path) -> None:
    """`--html` writes one page without script or network: bars, curves, kinds and the table, for each method."""
    labelled(tmp_path / "set" / "a", "m5")
    page = tmp_path / "page.html"
    done = run("evaluate", tmp_path / "set", "--methods", "peerwatch,median", "--window", "2", "--html", page)
    assert (done.returncode, done.stderr) == (0, "")
    assert "precision, by window" in done.stdout
    text = page.read_text()
    assert text.count("<svg") == 3
    assert all(word in text for word in ("peerwatch", "median", "slow_gpu", "1/1", "healthy machine-hours"))
    assert "<script" not in text
    assert "http" not in text.split("</head>")[1]
    assert "cannot be written" in one_line(run("evaluate", tmp_path / "set", "--html", tmp_path), 1)


def test_settings_of_a_file_are_evaluated(tmp_path: Path) -> None:
    """Where nine peers are asked of eight machines the fault is missed; a file with a wrong key is refused."""
    labelled(tmp_path / "a", "m5")
    few, wrong = tmp_path / "few.toml", tmp_path / "wrong.toml"
    few.write_text("[detector]\nmin_peers = 9\n")
    wrong.write_text("[detector]\nmin_alarms = 600\n")
    found = {}
    for name, more in (("defaults", ()), ("few", ("--config", few))):
        done = run("evaluate", tmp_path / "a", "--methods", "peerwatch", "--json", *more)
        assert (done.returncode, done.stderr) == (0, "")
        found[name] = json.loads(done.stdout)["methods"]["peerwatch"]["recall"]
    assert found["few"] < found["defaults"] == 1.0
    assert "min_alarms" in one_line(run("evaluate", tmp_path / "a", "--config", wrong), 1)


def test_groups_count_as_one_or_each(tmp_path: Path) -> None:
    """Two machines of one rack are one fault unless asked otherwise, and the output says which."""
    fleet(tmp_path / "r", "m5")
    fault = {"device": None, "kind": "rack_power", "group": "rack:4", "start": 300 * 10**9, "end": 600 * 10**9}
    faults = [{"machine": "m5", **fault}, {"machine": "m6", **fault}]
    (tmp_path / "r" / "labels.json").write_text(json.dumps({"machines": 8, "faults": faults}))
    for groups, of, words in (("one", 1, "count as one fault (at most 2 here)"), ("each", 2, "counts as one fault")):
        done = run("evaluate", tmp_path / "r", "--methods", "peerwatch", "--groups", groups, "--json")
        found = json.loads(done.stdout)
        assert (found["methods"]["peerwatch"]["by_fault"]["of"], words in found["counted"]) == (of, True)
    assert "must be one or each" in one_line(run("evaluate", tmp_path / "r", "--groups", "some"), 1)


def test_refusals(tmp_path: Path) -> None:
    """A folder without labels, and a method that is none, are said before the work begins."""
    fleet(tmp_path / "r", None)
    assert "holds no labels.json" in one_line(run("evaluate", tmp_path / "r"), 1)
    labelled(tmp_path / "l", None)
    assert "no method is called gremlin" in one_line(run("evaluate", tmp_path / "l", "--methods", "gremlin"), 1)


def test_a_set_of_recordings(tmp_path: Path) -> None:
    """Each recording has a name with its fault, the seed repeats the plans, and two faults may strike at once."""
    from emulator.simulation.simulate import many, pieces

    plans = many(30, seed=4)
    assert plans == many(30, seed=4) != many(30, seed=5)
    assert sum(plan.fault == "none" for _, plan in plans) == 3
    assert {len(plan.kinds()) for _, plan in plans} == {0, 1, 2}
    double = next(plan for _, plan in plans if len(plan.kinds()) == 2)
    labels, _ = pieces(double)
    assert len({fault["machine"] for fault in labels["faults"]}) == 2
    done = run("simulate", tmp_path / "s", "--many", "1", "--seed", "7", "--disturbances", "some")
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "s").iterdir()
    labels = json.loads((folder / "labels.json").read_text())
    assert len(labels["disturbances"]) > 0
    kinds = [fault["kind"] for fault in labels["faults"]]
    assert folder.name == f"000-{'+'.join(kinds)}"


def test_a_data_set_becomes_recordings(tmp_path: Path) -> None:
    """`peerwatch evaluate` reads recordings that `peerwatch import` made."""
    label = np.zeros((6, 60), np.uint8)
    np.savez(tmp_path / "js.npz", test=np.ones((6, 60, 2)), label=label)
    done = run("import", "jumpstarter", tmp_path / "js.npz", tmp_path / "out")
    assert (done.returncode, "6 machines, 0 faults" in done.stdout) == (0, True), done.stderr
    found = json.loads(run("evaluate", tmp_path / "out", "--methods", "peerwatch", "--json").stdout)
    assert found["methods"]["peerwatch"]["false"] == 0
    assert "is there already" in one_line(run("import", "jumpstarter", tmp_path / "js.npz", tmp_path / "out"), 1)


def test_replay_by_another_method(tmp_path: Path) -> None:
    """The verdict names the method that found it."""
    write = labelled(tmp_path / "r", "m5")
    said = [json.loads(line) for line in run("replay", write, "--json", "--method", "median").stdout.splitlines()]
    assert {(one["machine"], one["kind"]) for one in said} == {("m5", "median")}
    assert "no method is called" in one_line(run("replay", write, "--method", "gremlin"), 1)
