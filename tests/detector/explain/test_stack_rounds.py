"""Stacks into suspects: outliers of several rounds, and the machines that share their parallel group."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from detector.explain.stack_rounds import suspects

WORK, STUCK = "matmul (layer.py:41)", "recv (socket.py:7)"
TEAM = [f"m{n}" for n in range(8)]
PROCESSES = [(name, "0", 300 + n) for n, name in enumerate(TEAM)]
GROUPS = {"whole": set(PROCESSES)} | {f"pp{n}": set(PROCESSES[2 * n : 2 * n + 2]) for n in range(4)}
GROUPS |= {f"dp{n}": set(PROCESSES[n::2]) for n in range(2)}


def rounds(*odd: dict[int, str]) -> pa.Table:
    """Rows of `stack`: in each round these machines have stacks of their own, the others work."""
    rows: list[dict[str, Any]] = []
    for nth, other in enumerate(odd, 1):
        for at, (machine, gpu, pid) in enumerate(PROCESSES):
            row = {"time": 1000 * nth + at, "machine": machine, "gpu": gpu, "pid": float(pid), "form": "python"}
            rows.append(row | {"stack": other.get(at, WORK), "still_seconds": 0.0, "round": float(nth)})
    return pa.Table.from_pylist(rows)


def test_the_group_flagged_most_is_suspected() -> None:
    """Five rounds name the pipeline with most outliers in most rounds, its innocent machine included."""
    found = suspects(
        rounds({4: STUCK, 5: STUCK}, {4: STUCK}, {1: STUCK}, {4: STUCK, 5: WORK + "x"}, {}), GROUPS, {}, TEAM
    )
    assert (found.rounds, found.group, found.flagged, found.sure) == (5, "pp2", 3, True)
    assert found.machines == ("m4", "m5")
    assert found.outliers == {"m4": 3, "m5": 2, "m1": 1}


def test_without_agreement_it_says_so() -> None:
    """The suspicion is not sure where each round flags another group."""
    found = suspects(rounds({0: STUCK}, {3: STUCK}, {5: STUCK}, {7: STUCK}), GROUPS, {}, TEAM)
    assert (found.flagged, found.sure) == (1, False)


def test_one_round_without_communicators() -> None:
    """Rows of a hang without communicators make the outliers' machines alone suspects."""
    table = rounds({6: STUCK}).drop_columns(["round"])
    found = suspects(table, {}, {}, TEAM)
    assert (found.rounds, found.group, found.machines) == (1, "", ("m6",))


def test_all_alike_and_other_teams() -> None:
    """Equal stacks suspect none; machines outside of the team do not count."""
    assert suspects(rounds({}, {}), GROUPS, {}, TEAM).machines == ()
    assert suspects(rounds({2: STUCK}), GROUPS, {}, ["m0", "m1"]).outliers == {}
