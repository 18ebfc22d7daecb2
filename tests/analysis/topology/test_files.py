"""Topology files: our own two forms, Slurm's, LLDP's, nvidia-smi's; what is wrong with one is one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from analysis.topology.files import read_topology
from analysis.topology.hostlist import expanded
from analysis.topology.places import Link, topology_of

TOML = """
[[leaf]]
name = "leaf1"
pod = "pod1"
machines = ["m[01-03]", "n7"]
[[leaf]]
name = "leaf2"
machines = ["m04"]
"""
CSV = "machine, leaf, pod\nm01, leaf1, pod1\nm04, leaf2,\n"
SLURM = """# two leaves under one switch
SwitchName=leaf1 Nodes=m[01-03],n7
SwitchName=leaf2 Nodes=m04 LinkSpeed=900
SwitchName=pod1 \\
    Switches=leaf[1-2]
"""
BLOCKS = "BlockName=b1 Nodes=m[01-02]\nBlockName=b2 Nodes=m03\nBlockSizes=2\n"
TOPO = """\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tNIC1\tNIC2\tCPU Affinity\tNUMA Affinity\x1b[0m
GPU0\t X \tNV12\tNV12\tSYS\tPXB\tPXB\t0-31\t0
GPU1\tNV12\t X \tNV12\tSYS\tPXB\tPXB\t0-31\t0
GPU2\tNV12\tNV12\t X \tPIX\tSYS\tSYS\t32-63\t1
NIC0\tSYS\tSYS\tPIX\t X \tSYS\tSYS
Legend:
  X = Self
"""


def lldp(*switches: str) -> dict[str, Any]:
    """`lldpcli show neighbors -f json`: one neighbour is an object, several are a list."""
    ports = [
        {f"eth{at}": {"via": "LLDP", "chassis": {name: {"id": {"value": "aa:bb"}}}}} for at, name in enumerate(switches)
    ]
    return {"lldp": {"interface": ports if len(ports) > 1 else ports[0]}}


def lldp0(*switches: str) -> dict[str, Any]:
    """`lldpcli show neighbors -f json0`: lists everywhere."""
    ports = [
        {"name": "eth3", "chassis": [{"id": [{"value": "cc:dd"}], "name": [{"value": name}]}]} for name in switches
    ]
    return {"lldp": [{"interface": ports}]}


@pytest.mark.parametrize(("name", "text"), [("t.toml", TOML), ("t.csv", CSV), ("topology.conf", SLURM)])
def test_a_file_names_leaf_and_pod(name: str, text: str, tmp_path: Path) -> None:
    """Each form gives the same places; a name with a domain is known by its first part."""
    (tmp_path / name).write_text(text)
    found = read_topology([tmp_path / name])
    first, fourth = found.place("m01.cluster.example"), found.place("m04")
    assert first is not None
    assert fourth is not None
    assert (first.leaf, first.pod, fourth.leaf) == ("leaf1", "pod1", "leaf2")
    assert found.place("m99") is None


def test_slurm_blocks_are_leaves(tmp_path: Path) -> None:
    """BlockName lines of topology/block give leaves without pods."""
    (tmp_path / "topology.conf").write_text(BLOCKS)
    places = read_topology([tmp_path / "topology.conf"]).places
    assert {machine: place.leaf for machine, place in places.items()} == {"m01": "b1", "m02": "b1", "m03": "b2"}


@pytest.mark.parametrize("form", [lldp, lldp0])
def test_lldp_files_of_machines(form: Any, tmp_path: Path) -> None:
    """A folder of a file a machine: machines on the same set of switches are on the same leaf."""
    for machine, switches in {"m1": ["sw2", "sw1"], "m2": ["sw1", "sw2"], "m3": ["sw3"]}.items():
        (tmp_path / f"{machine}.json").write_text(json.dumps(form(*switches)))
    places = read_topology([tmp_path]).places
    assert {machine: place.leaf for machine, place in places.items()} == {"m1": "sw1+sw2", "m2": "sw1+sw2", "m3": "sw3"}
    assert places["m1"].switches == ("sw1", "sw2")


def test_lldp_leaves_get_their_pod_from_another_file(tmp_path: Path) -> None:
    """Files are joined: one says which switch a machine hears, the other which pod a switch is in."""
    (tmp_path / "m1.json").write_text(json.dumps(lldp("leaf2")))
    (tmp_path / "pods.csv").write_text("machine,leaf,pod\nm2,leaf2,pod5\n")
    place = read_topology([tmp_path]).place("m1")
    assert place is not None
    assert place.pod == "pod5"


def test_rails_follow_the_nearest_adapter(tmp_path: Path) -> None:
    """nvidia-smi says which adapter each GPU is nearest to; without it rails go by the GPU's number."""
    rows = [f"{machine},leaf{rail},,{rail}" for machine in ("m1", "m2") for rail in (0, 1, 2)]
    (tmp_path / "net.csv").write_text("machine,leaf,pod,rail\n" + "\n".join(rows))
    (tmp_path / "m1.txt").write_text(TOPO)
    found = read_topology([tmp_path])
    assert [found.rail("m1", gpu) for gpu in "012"] == ["1", "2", "0"]
    assert [found.rail("m2", gpu) for gpu in "012"] == ["0", "1", "2"]
    assert found.rail("m9", "0") == ""
    (tmp_path / "m1.txt").rename(tmp_path / "every.txt")
    assert read_topology([tmp_path]).rail("m2", "2") == "0"


def test_lists_of_names() -> None:
    """Slurm's brackets: ranges with leading zeros, several brackets, names beside each other."""
    assert expanded("m[08-10,2],n1") == ["m08", "m09", "m10", "m2", "n1"]
    assert expanded("r[1-2]n[5,7]") == ["r1n5", "r1n7", "r2n5", "r2n7"]


@pytest.mark.parametrize("text", ["m[3-1]", "m[a-b]", "m[1", "m]1[", "m[0-99999999]", "m[0-999]n[0-999]"])
def test_wrong_lists_are_refused(text: str) -> None:
    """Ranges that are none, open brackets and millions of names are errors."""
    with pytest.raises(ValueError, match=r"no list|no range|more than"):
        expanded(text)


WRONG = {
    "nothing": ("hello", "no topology"),
    "binary": ("\udcff\udcfe", "no text"),
    "no switch": ('{"lldp": {}}', "no switch is heard"),
    "broken JSON": ('{"lldp": {', "broken JSON"),
    "wrong key": ("[[leaf]]\nname = 'a'\nmachines = ['m1']\nrack = 4", "rack"),
    "empty cell": ("machine,leaf\nm1,\n", "line 2"),
    "wrong range": ("SwitchName=s1 Nodes=m[9-1]\n", "no range"),
    "no adapter": ("\tGPU0\tGPU1\tCPU Affinity\nGPU0\tX\tSYS\t0-3\n", "no network adapter"),
    "no node": ("SwitchName=s1 Switches=s[2-3]\n", "names no machine"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_files_are_one_line(name: str, tmp_path: Path) -> None:
    """Each error names the file and what is wrong, in one line."""
    text, words = WRONG[name]
    (tmp_path / "wrong").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ValueError, match=words) as raised:
        read_topology([tmp_path / "wrong"])
    assert "wrong" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_leaf_is_in_one_pod() -> None:
    """Two files that put a leaf into different pods contradict each other."""
    with pytest.raises(ValueError, match="leaf l1 is in pod p1 and in pod p2"):
        topology_of([Link("m1", "l1", "p1"), Link("m2", "l1", "p2")])


def test_switches_above_a_machine_are_leaf_and_pod(tmp_path: Path) -> None:
    """From each machine upwards, the nearest switch first; none above a leaf that is in no pod."""
    place = tmp_path / "topology.conf"
    place.write_text("SwitchName=s1 Nodes=m[08-10]\nSwitchName=s2 Nodes=n7\nSwitchName=top Switches=s1\n")
    above = read_topology([place]).above()
    assert (above["m09"], above["n7"], len(above)) == (("s1", "top"), ("s2",), 4)
