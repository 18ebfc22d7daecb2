"""What is left of the rank table when machines that are gone are dropped."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from detector.stats.arrays import Ints


@dataclass(frozen=True, slots=True)
class Compaction:
    """What an eviction leaves: the old numbers of series, processes and communicators, in their new order."""

    series: Ints
    processes: Ints
    codes: Ints

    def renumbered(self, codes: Ints) -> Ints:
        """New numbers of communicators by their old ones; -1 for none and for evicted ones."""
        return np.where(np.isin(codes, self.codes), np.searchsorted(self.codes, codes), -1)
