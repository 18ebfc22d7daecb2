"""What it costs to look up what a machine did before, for a large fleet."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from detector.alerts.past_incidents import DAY_NS, earlier
from detector.model.verdict import Verdict
from detector.model.verdict_rows import batch_of
from store.schema.sample import Batch, Sample
from store.schema.time import SECOND
from store.sqlite.embedded import Embedded

pytestmark = pytest.mark.bench
NOW = 1_790_000_000 * SECOND
MACHINES, GPUS, WEEKS, INCIDENTS = 2500, 8, 4, 2000


def test_the_cost_of_earlier_incidents(tmp_path: Path) -> None:
    """The bench counts 2,000 incidents of 28 days of 2,500 machines with weekly cards in the embedded store."""
    store, batches = Embedded(tmp_path / "s.db"), list[Batch]()
    for week in range(WEEKS):
        at = NOW - (WEEKS - week) * 7 * DAY_NS
        for machine in range(MACHINES):
            cards = [Sample("card", {"gpu": str(gpu), "serial": f"S{machine}-{gpu}"}) for gpu in range(GPUS)]
            batches.append(Batch(f"m{machine:04}", at + machine, tuple(cards)))
    for nth in range(INCIDENTS):
        at = NOW - DAY_NS - nth * (26 * DAY_NS // INCIDENTS)
        values = ("t1", f"m{nth % MACHINES:04}", f"gpu:{nth % GPUS}", "peer", "gpu.power_watts", 3.5, at)
        batches += [batch_of(Verdict(at, *values, "crit", "is slow")), batch_of(Verdict(at + 9, *values, "ok", ""))]
    store.write(batches)
    verdict = Verdict(NOW, "t1", "m0077", "gpu:5", "peer", "gpu.power_watts", 3.5, NOW, "crit", "is slow")
    begin = time.process_time()
    found = earlier(store, verdict, NOW)
    spent = time.process_time() - begin
    store.close()
    print(f"\n{MACHINES * GPUS * WEEKS:,} rows of card, {2 * INCIDENTS:,} of verdict: {spent:.2f} s of CPU")
    assert found.times == 1
    assert spent < 5
