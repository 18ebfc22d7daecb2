"""The scheduler's jobs of machines and GPUs at a time, from the table `job`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from detector.topology.jobs import Jobs
    from store.schema.contract import Store


def read_jobs(store: Store, now: int) -> Jobs:
    """The jobs that the agents named until `now` (Unix ns) and have not stopped naming."""
    from detector.timeseries.rows import rows_of
    from detector.topology.jobs import FRESH_NS, Jobs  # loads numpy, which the agent's process must not

    jobs = Jobs()
    if "job" in store.tables():
        jobs.feed(rows_of("job", store.read("job", now - FRESH_NS, now)))
    return jobs
