"""Ring and maps as numpy arrays."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bpf.loader import load
from bpf.maps import dtype_of_event, dtype_of_leaf
from bpf.uprobe import Point, attach, detach
from emulator.libraries.build import build
from tests.conftest import PROBES


def test_leaf_description() -> None:
    """A struct's description becomes a dtype with its fields, arrays included."""
    leaf = [
        "slot",
        [["comm", "unsigned long long"], ["kind", "unsigned int"], ["kinds", "unsigned long long", [16]]],
        "struct",
    ]
    dtype = dtype_of_leaf(leaf)
    assert dtype.names == ("comm", "kind", "kinds")
    assert dtype["kinds"].shape == (16,)
    assert dtype.itemsize == 8 + 4 + 128


@given(st.lists(st.sampled_from(["u8", "u32", "u64", "s64", "u8[128]"]), min_size=1, max_size=12))
def test_event_description(kinds: list[str]) -> None:
    """An event's fields keep their order and their sizes."""
    sizes = {"u8": 1, "u32": 4, "u64": 8, "s64": 8, "u8[128]": 128}
    dtype = dtype_of_event([f"f{place}#{kind}" for place, kind in enumerate(kinds)])
    assert dtype.itemsize == sum(sizes[kind] for kind in kinds)
    assert dtype.names == tuple(f"f{place}" for place in range(len(kinds)))


@pytest.fixture
def probed(probes_allowed: None) -> Any:
    """Probes on the emulated ncclCommDestroy, and the function itself in this process."""
    from agent.binaries.elf_worker import examine
    from agent.binaries.opened_file import Opened, open_library

    kernel, library = load(("nccl", "cuda"), PROBES), build()
    ctypes.CDLL(str(library.cudart), ctypes.RTLD_GLOBAL)
    opened = open_library([str(library.nccl)])
    assert isinstance(opened, Opened)
    (found,) = examine(opened, ["ncclCommDestroy"], "")
    for pool in ("free_processes", "free_slots"):
        for index in range(8):
            kernel.maps[pool].update(b"", index.to_bytes(4, "little"))
    place = Point(found["functions"]["ncclCommDestroy"])
    probe = attach(kernel.programs["ncclCommDestroy"], str(library.nccl), place)
    destroy = ctypes.CDLL(str(library.nccl)).ncclCommDestroy
    destroy.argtypes = [ctypes.c_void_p]
    yield kernel, destroy
    detach([probe])
    kernel.close()


@pytest.mark.bpf
def test_drain_keeps_order_over_the_wrap(probed: Any) -> None:
    """Events come out once, in order, also when the ring has gone round several times; who drains gives room back."""
    from agent.probes.shares import ProxyShares

    kernel, destroy = probed
    taken, shares = [], ProxyShares(kernel.maps)
    for turn in range(20):
        for number in range(turn * 211, (turn + 1) * 211):
            destroy(None if number == 0 else 0)
        taken.append(kernel.rings["events"].drain())
        shares.drained(taken[-1])
    events = np.concatenate(taken)
    assert len(events) == 20 * 211
    assert (np.diff(events["ns"].astype(np.int64)) > 0).all()
    assert not kernel.maps["losses"].rows().any()


@pytest.mark.bpf
def test_full_ring_counts_what_it_loses(probed: Any) -> None:
    """What does not fit is lost, and the ledger says exactly how many."""
    kernel, destroy = probed
    for _ in range(5000):
        destroy(None)
    kept = len(kernel.rings["events"].drain())
    losses = kernel.maps["losses"].rows()
    assert 0 < kept < 5000
    assert kept + int(losses.sum()) == 5000
    (process,) = kernel.maps["processes"].rows()[kernel.maps["processes"].rows()["tgid"] > 0]
    assert int(process["lost"]) == 5000 - kept


@pytest.mark.bpf
def test_attach_to_a_missing_file(probed: Any, tmp_path: Path) -> None:
    """A file that is not there any more is a FileNotFoundError: the process behind it has ended."""
    kernel, _ = probed
    with pytest.raises(FileNotFoundError):
        attach(kernel.programs["ncclSend"], str(tmp_path / "gone"), Point(4096))


@pytest.mark.bpf
def test_map_changes(probed: Any) -> None:
    """An entry that was put in can be taken out once."""
    kernel, _ = probed
    key = np.array([7], np.uint64).tobytes()
    kernel.maps["process_of"].update(key, (3).to_bytes(4, "little"))
    assert kernel.maps["process_of"].delete(key)
    assert not kernel.maps["process_of"].delete(key)
