"""TCP retransmits are counted for the GPU of the process that holds the socket."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from agent.process.tcp_sockets import Sockets, held

SECOND = 10**9
NOW = 10**18
RETRANSMIT = np.dtype([("inode", "<u8"), ("total", "<u8")])


def retransmits(*events: tuple[int, int]) -> np.ndarray:
    """What the kernel tells: sockets and their totals."""
    return np.array(list(events), RETRANSMIT)


def process(proc: Path, pid: int, *inodes: int) -> None:
    """A process that holds these sockets, and a file and a pipe."""
    folder = proc / str(pid) / "fd"
    folder.mkdir(parents=True, exist_ok=True)
    links = ["/dev/null", "pipe:[77]", *(f"socket:[{inode}]" for inode in inodes)]
    for number, link in enumerate(links):
        (folder / str(number)).symlink_to(link)


def test_totals_are_separate_for_each_gpu(tmp_path: Path) -> None:
    """Each GPU gets what its processes' sockets sent again since they were first met; strangers get nothing."""
    process(tmp_path, 11, 501, 502)
    process(tmp_path, 12, 503)
    sockets = Sockets(tmp_path)
    sockets.update(NOW, retransmits((501, 7), (503, 3), (501, 9), (599, 40)), {11: "0", 12: "1"})
    assert sockets.segments == {"0": 1, "1": 1}
    sockets.update(NOW + SECOND, retransmits((501, 12), (599, 41)), {11: "0", 12: "1"})
    assert sockets.segments == {"0": 4, "1": 1}


def test_what_came_before_the_look_is_counted(tmp_path: Path) -> None:
    """A socket met between two looks gets all it sent again since it was met."""
    process(tmp_path, 11, 501, 502)
    sockets = Sockets(tmp_path)
    sockets.update(NOW, retransmits((501, 1)), {11: "0"})
    sockets.update(NOW + SECOND, retransmits((502, 5)), {11: "0"})
    sockets.update(NOW + 2 * SECOND, retransmits((502, 8)), {11: "0"})
    assert sockets.segments == {"0": 1}
    sockets.update(NOW + 30 * SECOND, retransmits(), {11: "0"})
    assert sockets.segments == {"0": 1 + 4}


def test_a_number_that_another_socket_has_now(tmp_path: Path) -> None:
    """A total that fell is another socket's: what was counted stays, and it is looked for again."""
    process(tmp_path, 11, 501)
    process(tmp_path, 12)
    sockets = Sockets(tmp_path)
    sockets.update(NOW, retransmits((501, 90)), {11: "0", 12: "1"})
    (tmp_path / "11/fd/2").unlink()
    (tmp_path / "12/fd/9").symlink_to("socket:[501]")
    sockets.update(NOW + 20 * SECOND, retransmits((501, 2)), {11: "0", 12: "1"})
    assert sockets.segments == {"0": 1, "1": 1}


def test_a_stranger_that_begins_to_train(tmp_path: Path) -> None:
    """A socket without a holder is searched again after a while."""
    process(tmp_path, 11, 501)
    sockets = Sockets(tmp_path)
    sockets.update(NOW, retransmits((501, 3)), {})
    sockets.update(NOW + 30 * SECOND, retransmits((501, 4)), {11: "0"})
    assert not sockets.segments
    sockets.update(NOW + 90 * SECOND, retransmits((501, 5)), {11: "0"})
    assert sockets.segments == {"0": 1}


def test_a_real_socket() -> None:
    """A process's own socket is found, one that it does not hold is not, and nothing of a process that is none."""
    with socket.socket() as one:
        inode = os.fstat(one.fileno()).st_ino
        assert held(Path("/proc/self"), {inode, 1}) == {inode}
    assert held(Path("/proc/self"), {inode}) == set()
    assert held(Path("/proc/0"), {inode}) == set()


@given(st.lists(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**32)), max_size=9), max_size=9))
def test_any_totals(readings: list[list[tuple[int, int]]]) -> None:
    """Whatever is reported, the sums never fall."""
    sockets, before = Sockets(Path("/nonexistent")), 0
    for number, events in enumerate(readings):
        sockets.update(NOW + number * 20 * SECOND, retransmits(*events), {11: "0"})
        assert sum(sockets.segments.values()) >= before
        before = sum(sockets.segments.values())
