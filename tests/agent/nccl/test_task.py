"""A training task that ran before the agent came: its iterations, its progress, and the ranks that a hang waits for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from emulator.libraries import build
from tests.emulator.conftest import Ranks

pytestmark = pytest.mark.bpf


@pytest.fixture
def ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ranks]:
    """Two pairs of tensor ranks, with a pair of data ranks across each; iterations of a fifth of a second.

    Their library has its members elsewhere than any that was seen before.
    """
    monkeypatch.setattr(build, "FLAGS", (*build.FLAGS, f"-DMAXCHANNELS={3 + os.getpid() % 29}"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    started = Ranks(tmp_path, build.build(tmp_path), (2, 1, 2), "--load=0.07", "--compute=0.1")
    try:
        started.wait_iterations(2)
        yield started
    finally:
        started.kill()


def test_rhythm_and_progress(watch: Any, ranks: Ranks) -> None:
    """Iteration time as the ranks themselves count it; steps that grow; then the rank that hangs is waited for."""
    seen, own = watch(sources=("probe", "nccl", "cuda")), [process.pid for process in ranks.processes]

    def rows_of(rank: int, rows: dict[str, Any]) -> list[dict[str, Any]]:
        return [row for row in rows.get("nccl", ()) if row["pid"] == own[rank]]

    def agrees(rows: dict[str, Any]) -> bool:
        # On a busy machine iterations become longer from one to the next: both have to be asked at about one time.
        seconds = [row.get("iteration_seconds") for rank in range(4) for row in rows_of(rank, rows)]
        own_seconds = ranks.fabric.progress(0).iteration_seconds
        return len(seconds) == 12 and all(seconds) and seconds[0] == pytest.approx(own_seconds, rel=0.3)

    seen.until(agrees)

    def steps() -> list[int]:
        return [row["steps_done_total"] for row in rows_of(0, seen.rows) if row.get("steps_done_total") is not None]

    before = seen.until(lambda _: steps() if sum(steps()) > 0 else None)
    seen.until(lambda _: sum(steps()) > sum(before))

    def pairs(rows: dict[str, Any]) -> list[float | None]:
        # Of all four, the only operation has one element: samples may never see it at work, and say nothing of it.
        return [row.get("still_seconds") for row in rows_of(1, rows) if row["ranks"] == 2]

    seen.until(lambda rows: pairs(rows) and None not in pairs(rows))
    ranks.order(1, "rank_hang")

    def waited_for(rows: dict[str, Any]) -> set[float]:
        # It hangs before any of its operations: rank 0 shares the tensor ones, rank 2 comes behind it in the world's.
        still = [row for rank in (0, 2) for row in rows_of(rank, rows) if (row.get("still_seconds") or 0) > 1]
        beside = {row["waits_to_receive_from"] for row in still if (row["pid"], row["ranks"]) == (own[0], 2)}
        return beside | {row["waits_to_receive_from"] for row in still if (row["pid"], row["ranks"]) == (own[2], 4)}

    assert seen.until(waited_for) == {1.0}
    assert pairs(seen.rows) == [0.0, 0.0]
    assert not any(row.get("still_seconds") for row in rows_of(1, seen.rows))
