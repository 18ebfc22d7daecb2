"""A rank with layers that are mixtures of experts, one on each data rank."""

from __future__ import annotations

import math
import random

from emulator.training.rank import LAYERS
from emulator.training.run_ahead import RunAheadRank
from emulator.training.task import split

TOKEN_BYTES = 20_000_000
"""Of one rank's tokens in one layer."""
IMBALANCE = 0.15
"""Standard deviation of the logarithm of an expert's popularity; each layer draws its own."""
STEPS = 64
"""Shares of tokens are multiples of one in so many, so that kernels have few lengths."""


class ExpertsRank(RunAheadRank):
    """As the rank that runs ahead; its middle layer is computed by experts, who get more tokens or fewer."""

    def prepare(self) -> None:
        """Also make the experts' communicator, of the data ranks, and a stream for it."""
        super().prepare()
        self.groups["expert"] = split(self.options, self.calls, self.groups["world"], "data")
        self.streams["expert"] = self.calls.make("cudaStreamCreateWithFlags", 1)
        self.routing = random.Random(self.options.seed - self.options.rank)  # all ranks draw the same

    def compute_layer(self, seconds: float) -> None:
        """A layer's kernels; in the middle one tokens go to their experts before, and back behind."""
        if self.layer != LAYERS // 2:
            self.launch(seconds)
            return
        group = self.groups["expert"]
        popular = [math.exp(self.routing.gauss(0.0, IMBALANCE)) for _ in range(group.ranks)]
        share = [max(1, round(STEPS * group.ranks * one / sum(popular))) / STEPS / group.ranks for one in popular]
        peers = [peer for peer in range(group.ranks) if peer != group.rank]
        theirs = [(peer, round(TOKEN_BYTES * share[peer])) for peer in peers]
        mine = [(peer, round(TOKEN_BYTES * share[group.rank])) for peer in peers]
        self.exchange("expert", group, theirs, mine)
        self.launch(seconds * share[group.rank] * group.ranks)
        self.exchange("expert", group, mine, theirs)
