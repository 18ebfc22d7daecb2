"""The real agent on emulated machines: every column of the hardware's tables is filled."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from cli.agent_process import agent_command
from emulator.cluster.fleet import Fleet
from store.open import open_store
from store.schema.catalogue import METRICS
from store.schema.contract import Store

SOURCES = ("host", "gpu", "rdma", "kernel_log")
TABLES = ("host", "gpu", "rdma")
FAST = ("--load=0.01", "--compute=0.04", "--optimizer=0.005", "--gradient-bytes=50000000", "--checkpoint-every=0")
FALL = ("m01", "kernel_log", "link_down")
PRESSURE = Path("/proc/pressure/memory")


@pytest.fixture(scope="module")
def store(rooted: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """What agents on two machines of two GPUs write; a link of one machine flaps."""
    folder = tmp_path_factory.mktemp("columns")
    config = folder / "peerwatch.toml"
    config.write_text(f"[agent]\nsources = {list(SOURCES)}\n")
    data = folder / "readings.db"

    def agent(name: str) -> list[str]:
        return agent_command(data, config, folder / "fleet" / name)

    with closing(open_store(str(data), create=True)) as store:
        with Fleet(folder / "fleet", machines=2, gpus=2, agent=agent, rank_options=FAST) as fleet:
            limit = time.monotonic() + 60
            while "host" not in store.tables() and time.monotonic() < limit:
                time.sleep(0.1)
            fleet.inject("link_flap", "m01", 1)
            while (empty(store) or FALL not in codes(store)) and time.monotonic() < limit:
                time.sleep(0.5)
        yield store


def columns(table: str) -> set[str]:
    """The columns that the catalogue has for a table, but for what only MIG, DCGM's service or another kernel has."""
    names = {metric.name for metric in METRICS.values() if metric.table == table}
    names -= {"parent_uuid", "health_failures", "health_warnings"}
    return names if PRESSURE.exists() else {name for name in names if "pressure" not in name}


def empty(store: Store) -> dict[str, set[str]]:
    """By table and device, the columns that no reading has filled; a table that is not there lacks all."""
    found: dict[str, set[str]] = {}
    for table in TABLES:
        rows = store.read(table, 0, 1 << 62).to_pylist() if table in store.tables() else []
        devices = {(row["machine"], row.get("gpu") or row.get("port")) for row in rows}
        if len(devices) < (2 if table == "host" else 4):
            found[table] = columns(table)
        for machine, device in devices:
            mine = [row for row in rows if (row["machine"], row.get("gpu") or row.get("port")) == (machine, device)]
            null = {name for name in columns(table) if all(row.get(name) is None for row in mine)}
            if null:
                found[f"{table} of {machine} {device}"] = null
    return found


def codes(store: Store) -> set[tuple[str, str, str]]:
    """Machine, source and code of the events."""
    rows = store.read("event", 0, 1 << 62).to_pylist() if "event" in store.tables() else []
    return {(row["machine"], row["source"], row["code"]) for row in rows}


def test_every_column_of_the_hardware_is_filled(store: Store) -> None:
    """Each GPU, port and machine has had a value in every column of its table."""
    assert empty(store) == {}


def test_readings_are_those_of_the_emulated_hardware(store: Store) -> None:
    """What is read is what the emulated devices show, not what this computer has."""
    gpus = store.read("gpu", 0, 1 << 62).to_pylist()
    assert {(row["machine"], row["gpu"]) for row in gpus} == {(f"m0{at}", str(gpu)) for at in (0, 1) for gpu in (0, 1)}
    assert max(row["power_watts"] or 0 for row in gpus) > 120
    assert {row["pcie_width"] for row in gpus} - {None} == {16}
    ports = store.read("rdma", 0, 1 << 62).to_pylist()
    assert {row["port"] for row in ports} == {"mlx5_0/1", "mlx5_1/1"}
    assert {row["rate_bits_per_second"] for row in ports} - {None} == {4e11}


def test_a_link_that_flaps_is_an_event_of_its_machine(store: Store) -> None:
    """The kernel's line about a link that goes down is an event of that machine and of no other."""
    assert FALL in codes(store)
    assert {machine for machine, _, code in codes(store) if code == "link_down"} == {"m01"}
