"""Hangs in words: what is wrong, of which rank, for how long, and the likely cause."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from detector.methods.progress.chunk_dependency import RootCause
from detector.model.operations import named
from detector.model.text import plural, subject
from detector.stats.arrays import Ints
from detector.topology.rank_table import RankTable


def device_of_rank(ident: tuple[str, ...]) -> tuple[str, str | None]:
    """Machine and device of a series (machine, GPU, slot); None where the GPU is not known."""
    return ident[0], f"gpu:{ident[1]}" if len(ident) > 1 and ident[1] else None


@dataclass(frozen=True, slots=True)
class HangText:
    """Sentences about series of a rank table."""

    ranks: RankTable
    idents: list[tuple[str, ...]]

    def device(self, series: int) -> tuple[str, str | None]:
        """Machine and device of a series."""
        return device_of_rank(self.idents[series])

    def missing(self, series: int, lag: float, waiting: Ints, seconds: float, lost: float) -> str:
        """A rank that is behind by `lag` operations; `waiting` are the series that wait for it."""
        doubt = f" The probes lost {lost:.0f} calls, so this is less certain." if lost else ""
        behind = f"it is {plural(round(lag), 'operation')} behind"
        ranks = f"{plural(len(waiting), 'rank')} waiting for it for {seconds:.0f} s"
        if self.ranks.replayed[series] == 1:
            graph = f"{self._rank(series)} replays no CUDA graph, and has nothing at work: {ranks}."
            return f"{graph} Likely its process hangs or ended.{doubt}"
        return (
            f"{self._rank(series)} never entered {self._operation(waiting[0])}: {ranks}, {behind}."
            f" Likely its process hangs or ended.{doubt}"
        )

    def ended(self, series: int, waiting: Ints, seconds: float) -> str:
        """A rank that is not read any more since the series `waiting` wait."""
        ranks = plural(len(waiting), "rank")
        return (
            f"{self._rank(series)} has not been read for {seconds:.0f} s, as {ranks} wait in"
            f" {self._operation(waiting[0])}, and others of its machine are. Likely its process ended."
        )

    def mismatched(self, series: int, usual: str, peers: int) -> str:
        """A rank that called another operation than its peers."""
        return (
            f"{self._rank(series)} called {self._operation(series)}, its {plural(peers, 'peer')} called {named(usual)}."
            " Likely a bug in the training program; the hardware is not the cause."
        )

    def departed(self, series: int, peers: int, seconds: float) -> str:
        """A rank that called what it never called at that place of its own order."""
        return (
            f"{self._rank(series)} left the order of its own calls before it and its {plural(peers, 'peer')} stalled"
            f" for {seconds:.0f} s; the others did not. Likely a bug in the training program; the hardware is not"
            " the cause."
        )

    def blocked(self, series: int, peer: int | None, cause: RootCause, waiting: int, seconds: float) -> str:
        """A link or GPU that blocks the other ranks."""
        other = "another rank" if peer is None else self._rank(peer)
        if cause.side == "gpu":
            action = "takes no more, and its peers have data ready for it" if cause.receives else "sends none"
            what, why = f"has all the data it needs, but its GPU {action}", "Likely its GPU hangs"
        elif cause.receives:
            what = f"does not receive a chunk that {other} sent"
            why = "Likely its network link, or the link of the sender"
        else:
            what = f"sent a chunk to {other} that does not arrive"
            why = "Likely its network link, or the link of the receiver"
        ranks = f"{plural(waiting, 'rank')} waiting for {seconds:.0f} s"
        blocks = f"{self._rank(series)} blocks {self._operation(series)}"
        return f"{blocks}: it {what}{self._path(series)}; {ranks}. {why}.{self._replayed(series)}"

    def _replayed(self, series: int) -> str:
        """That the operation named is the last one called, where CUDA graphs replay what was called before."""
        if self.ranks.replayed[series] != 1:
            return ""
        return " CUDA graphs replay its operations: the one named is the last that the program called itself."

    def _path(self, series: int) -> str:
        """Channel and network device of the transfer that waits, where they are known."""
        parts = (("channel", self.ranks.channel[series]), ("network device", self.ranks.net_device[series]))
        known = ", ".join(f"{name} {number:.0f}" for name, number in parts if not np.isnan(number))
        return f" ({known})" if known else ""

    def _operation(self, series: int) -> str:
        return named(self.ranks.operation[series])

    def _rank(self, series: int) -> str:
        """Machine, device and, where it is known, rank: `m03 GPU 0 (rank 24)`."""
        rank = self.ranks.rank[series]
        return subject(*self.device(series)) + ("" if np.isnan(rank) else f" (rank {rank:.0f})")
