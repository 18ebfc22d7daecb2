"""The lease: however late rows are written and read, at no time two detectors may speak."""

from __future__ import annotations

import random
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

from detector.service import lease as module
from detector.service.lease import (
    HOLD_S,
    SETTLE_S,
    Fenced,
    Lease,
    LeaseLostError,
    LeaseUnconfirmedError,
    Term,
    current,
)
from store.schema.contract import StoreError
from store.schema.sample import Batch, Sample
from store.signed import Signed
from store.sqlite.embedded import Embedded


class Table:
    """The table `lease` of a store without compare-and-swap: a row replaces that of its time and machine."""

    def __init__(self) -> None:
        self.rows: dict[tuple[int, str], dict[str, object]] = {}

    def write(self, batches: Iterable[Batch]) -> None:
        """Take the rows."""
        for batch in batches:
            self.rows[batch.time, batch.machine] = dict(batch.samples[0].values)

    def read(self, table: str, *_: object) -> pa.Table:
        """All rows."""
        rows = [{"time": time, "machine": machine, **values} for (time, machine), values in self.rows.items()]
        return pa.Table.from_pylist(rows) if rows else pa.table({"time": [], "machine": []})


class Link:
    """A detector's way to the table: it may be cut, and what is written may arrive later than its answer is awaited."""

    def __init__(self, table: Table, world: World) -> None:
        self.table, self.world = table, world
        self.cut = False

    def write(self, batches: Iterable[Batch]) -> None:
        """Write now, or fail and perhaps arrive later."""
        found = list(batches)
        if self.cut or self.world.chance.random() < self.world.trouble:
            if self.world.chance.random() < 0.7:
                self.world.late.append((self.world.now + self.world.chance.uniform(0, 40), found))
            raise StoreError("no answer")
        self.table.write(found)

    def read(self, table: str, *_: object) -> pa.Table:
        """Read now, or fail."""
        if self.cut:
            raise StoreError("no answer")
        return self.table.read(table)


class World:
    """Detectors with clocks that differ, paused and cut off at random."""

    def __init__(self, seed: int, detectors: int) -> None:
        self.chance = random.Random(seed)
        self.now = self.trouble = 0.0
        self.late: list[tuple[float, list[Batch]]] = []
        self.table = Table()
        self.links = [Link(self.table, self) for _ in range(detectors)]
        self.leases = [self.begun(link, self.chance.uniform(0, 1e6)) for link in self.links]
        self.wakes = [self.chance.uniform(0, 3) for _ in self.leases]

    def begun(self, link: Link, ahead: float) -> Lease:
        """A detector's lease, on a clock that is so many seconds ahead."""
        return Lease(link, lambda: self.now + ahead)  # type: ignore[arg-type]

    def run(self, seconds: float, trouble: float) -> list[set[int]]:
        """Who may speak, at each tenth of a second."""
        self.trouble, said = trouble, list[set[int]]()
        end = self.now + seconds
        while self.now < end:
            self.now += 0.1
            for at, batches in [one for one in self.late if one[0] <= self.now]:
                self.late.remove((at, batches))
                self.table.write(batches)
            for number, one in enumerate(self.leases):
                if self.now >= self.wakes[number]:
                    self.links[number].cut = self.chance.random() < trouble
                    pause = self.chance.uniform(5, 60) if self.chance.random() < trouble else 0.0
                    self.wakes[number] = self.now + module.BEAT_S + pause
                    with suppress(StoreError):
                        one.step()
            said.append({number for number, one in enumerate(self.leases) if one.held()})
        return said


@pytest.mark.parametrize("seed", [*range(8), 39, 182, 386])
def test_never_two_speak(seed: int) -> None:
    """At most one detector speaks under pauses of a minute, lost answers and late writes; in quiet exactly one does."""
    world = World(seed, 3)
    for trouble in (0.1, 0.3, 0.5):
        assert max(map(len, world.run(200, trouble))) <= 1
    world.run(150, 0.0)  # the last pause, the last late row, a takeover
    assert {len(held) for held in world.run(60, 0.0)} == {1}


def test_a_dead_holder_is_replaced_in_half_a_minute() -> None:
    """The next detector speaks less than 30 s after the last step of a dead holder."""
    world = World(5, 2)
    world.run(30, 0.0)
    (first,) = (number for number, one in enumerate(world.leases) if one.held())
    world.wakes[first] = float("inf")
    silent = sum(held == set() for held in world.run(40, 0.0)) / 10
    assert HOLD_S < silent + HOLD_S < 30
    assert world.leases[1 - first].term == 2


def test_a_store_that_was_away_does_not_depose_the_holder() -> None:
    """No detector speaks while all are cut off for a minute; then the same one speaks again, in the same term."""
    world = World(9, 3)
    world.run(30, 0.0)
    (first,) = (number for number, one in enumerate(world.leases) if one.held())
    assert world.run(60, 1.0)[-1] == set()
    world.late.clear()
    world.wakes = [world.now + at for at in (2.0, 0.5, 0.9)]
    assert world.run(10, 0.0)[-1] == {first}
    assert world.leases[first].term == 1


def test_a_term_that_was_given_back_is_claimed_at_once() -> None:
    """The next holder waits for its claim to settle, not for the row to grow old."""
    world = World(3, 2)
    world.run(30, 0.0)
    (first,) = (number for number, one in enumerate(world.leases) if one.held())
    world.leases[first].give_back()
    world.wakes[first] = float("inf")
    silent = sum(held == set() for held in world.run(30, 0.0)) / 10
    assert silent < SETTLE_S + 2 * module.BEAT_S + 0.3


def test_ranks_of_terms() -> None:
    """The later term comes first; of one term who holds it, then the lowest name."""
    older, claim, rival, held = (
        Term(1, "m", name, term, beat, 9) for name, term, beat in (("a", 1, 7), ("b", 2, 0), ("c", 2, 0), ("d", 2, 1))
    )
    assert max((older, rival, claim), key=lambda one: one.order) is claim
    assert max((older, rival, claim, held), key=lambda one: one.order) is held


def test_a_forged_lease_silences_none_and_rows_do_not_pile_up(tmp_path: Path) -> None:
    """A row without the key is passed over; a term is one row in the store, however often it is renewed."""
    plain = Embedded(tmp_path / "s.db")
    store, now = Signed(plain, bytes(range(40))), [0.0]
    one = Lease(store, lambda: now[0])
    for _ in range(9):
        one.step()
        now[0] += 2.0
    assert (one.term, one.held(), plain.read("lease").num_rows) == (1, True, 1)
    fake: dict[str, str | int | float | None] = {"holder": "x", "term": 77, "beat": 5, "until": 2**62}
    plain.write([Batch("m9", 3, (Sample("lease", fake),))])
    one.step()
    assert one.held()
    found = current(store)
    assert found is not None
    assert (found.term, found.holder) == (1, one.holder)
    plain.close()


def test_nothing_is_written_without_the_lease(tmp_path: Path) -> None:
    """A fence refuses where another holds the term, and waits where the store has not confirmed it for long."""
    store, now = Embedded(tmp_path / "s.db"), [0.0]
    one = Lease(store, lambda: now[0])
    fence = Fenced(store, one)
    with pytest.raises(LeaseLostError):
        fence.write([])
    for _ in range(6):
        one.step()
        now[0] += 2.0
    fence.write([])
    now[0] += HOLD_S
    with pytest.raises(LeaseUnconfirmedError):
        fence.write([])
    store.write([Term(9, "m9", "z", 2, 1, 99).batch()])
    one.step()
    with pytest.raises(LeaseLostError):
        fence.write([])
    store.close()
