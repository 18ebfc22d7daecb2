"""What the proxy threads of all communicators are at: their lists of transfers, read together and judged together."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from agent.layouts import Layout
from agent.lists import ADDRESS_BITS, NODES, Ints, List, Plan, keys
from agent.memory import Memory

NOBODY = -1
_CONNECTIONS = 8192
"""More than the ranks of a list have: addresses are another's word, and memory is ours."""
_PROGRESS = 2  # ncclProxyOpProgress: before that the counters are those of the operation that had the place before
_LEAP = 1 << 40
"""No connection moves so many steps between two looks: a value that says so is torn."""
_UNREADABLE, _RECEIVES, _SENDS = 0, 1, 2
_UNSEEN = -1
_NEVER = (1 << 64) - 1
Place = tuple[int, int]
"""Process number and address of the head of a proxy's list."""
Bools = NDArray[np.bool_]

SEEN = np.dtype(
    [
        # Whether the list made sense when it last changed, and what it was at then: any operation, be it only waiting
        # for the other ranks; a chunk handed to the network and not yet through; a chunk awaited from the network; a
        # transfer not at its end for which the network has nothing to do: the GPU has to offer more. To and from which
        # rank, of several the least advanced.
        ("valid", "?"), ("active", "?"), ("sending", "?"), ("receiving", "?"), ("unoffered", "?"),
        ("send_to", "i4"), ("receive_from", "i4"),
        # Looks that worked, and how many of them found what.
        ("looks", "i8"), ("actives", "i8"), ("sendings", "i8"), ("receivings", "i8"),
        # Steps that the connections seen at work have come since each was first seen.
        ("posted", "i8"), ("transmitted", "i8"), ("done", "i8"), ("received", "i8"),
        # When a look last worked, and when something at work was last seen to have moved, or nothing was at work;
        # monotonic seconds.
        ("looked", "f8"), ("moved", "f8"),
    ]
)  # fmt: skip
_TOTALS = (("looks", "valid"), ("actives", "active"), ("sendings", "sending"), ("receivings", "receiving"))
_STEPS = (("posted", 0, _SENDS), ("transmitted", 1, _SENDS), ("done", 2, _SENDS), ("received", 0, _RECEIVES))
_CONNECTION = np.dtype([("key", "u8"), ("side", "i1"), ("steps", "i8", 3)])


class Proxies:
    """The lists of many proxies. A connection counts its steps from `base` on, where the operation before it ended."""

    def __init__(self) -> None:
        self._lists: dict[Place, List] = {}
        self._plan = Plan([])
        self._before = self._plan.words
        self.order: dict[Place, int] = {}
        self.seen = np.zeros(0, SEEN)
        """What is known of each, in that order."""
        self.connections = np.zeros(0, _CONNECTION)
        """Those seen at work, by their keys."""

    def add(self, place: Place, memory: Memory, layout: Layout, now: float) -> None:
        """Look at this one too, from that time on. Raises KeyError or ValueError for a layout that cannot be meant."""
        if place not in self._lists:
            self._arrange(self._lists | {place: List(memory, place[1], layout)})
            self.seen["moved"][self.order[place]] = now

    def keep(self, wanted: Callable[[Place], bool]) -> None:
        """Look only at those of which this is true."""
        kept = {place: one for place, one in self._lists.items() if wanted(place)}
        if len(kept) < len(self._lists):
            self._arrange(kept)

    def look(self, now: float) -> bool:
        """Look at all; whether something at work has moved."""
        if not self._lists:
            return False
        whole, changed = self._read()
        if (changed | whole & ~self.seen["valid"]).any():
            whole, changed = self._judge(whole, changed)
        np.copyto(self._before, self._plan.words)
        works = whole & self.seen["valid"]
        for total, found in _TOTALS:
            self.seen[total] += works & self.seen[found]
        self.seen["looked"][works] = now
        self.seen["moved"][works & (changed | ~self.seen["active"])] = now
        return bool((works & changed & self.seen["active"]).any())

    def _read(self) -> tuple[Bools, Bools]:
        """Which lists could be read, and which of them are not as they were."""
        whole = self._plan.read()
        torn = [one for one, good in zip(self._lists.values(), whole, strict=True) if not good and one.nodes]
        if torn:  # a node was freed: begin again at the head
            for one in torn:
                one.nodes.clear()
            self._arrange(self._lists)
            whole = self._plan.read()
        for place in np.flatnonzero(~whole):
            self._before[self._plan.starts[place]] = _NEVER  # whatever is read next is another thing
            self._plan.words[self._plan.starts[place]] = _NEVER
        return whole, np.logical_or.reduceat(self._plan.words != self._before, self._plan.starts)

    def _judge(self, whole: Bools, changed: Bools) -> tuple[Bools, Bools]:
        """Follow the lists, learn what is new of them, and take in what they are at."""
        reached, strange = self._follow(whole)
        lists = list(self._lists.values())
        learned = [lists[place].learn(address) for place, address in strange]
        if any(learned):
            self._arrange(self._lists)
            whole, changed = self._read()
            reached, strange = self._follow(whole)
        sense = whole.copy()
        sense[[place for place, _ in strange if len(lists[place].nodes) < NODES]] = False
        self.seen["valid"] = sense
        self._take(reached, sense)
        return whole, changed

    def _follow(self, whole: Bools) -> tuple[Bools, list[tuple[int, int]]]:
        """Which nodes are in the lists, and of which lists there is more to learn at which address."""
        plan = self._plan
        heads, followings = plan.words[plan.starts], plan.words[plan.followings]
        first, after = plan.find(np.arange(len(heads)), heads), plan.find(plan.places, followings)
        first[~whole] = NOBODY
        reached = np.zeros(len(after), np.bool_)
        now = first[first >= 0]
        while len(now):
            reached[now] = True
            now = after[now]
            now = now[now >= 0]
            now = now[~reached[now]]
        lost, nsubs = reached & (after < NOBODY), plan.halves[plan.nsubs]
        other = reached & ((nsubs < 0) | (nsubs > plan.counts))
        places = np.concatenate((np.flatnonzero(first < NOBODY), plan.places[lost], plan.places[other]))
        addresses = np.concatenate((heads[first < NOBODY], followings[lost], plan.addresses[other].astype(np.uint64)))
        return reached, list(zip(places.tolist(), addresses.tolist(), strict=True))

    def _take(self, reached: Bools, sense: Bools) -> None:
        """What the subs at work tell of each list."""
        plan = self._plan
        begun = reached & (plan.halves[plan.states] == _PROGRESS) & sense[plan.places]
        working = begun[plan.nodes_of] & (plan.nths < plan.halves[plan.nsubs][plan.nodes_of])
        working &= plan.words[plan.members[0]] >> np.uint64(ADDRESS_BITS) == 0
        places = plan.places[plan.nodes_of[working]]
        values = plan.words.view(np.int64)[plan.members[:, working]]
        steps, peers = plan.halves[plan.member_halves[:, working]]
        _, _, posted, received, transmitted, done = values
        sides = self._count(places, values)
        sends, receives = sides == _SENDS, sides == _RECEIVES
        waits = (sends & (transmitted == done) | receives & (posted == received)) & (done < steps)
        sends, receives = sends & (transmitted > done), receives & (posted > received)
        sending, receiving = self._any(places[sends]), self._any(places[receives])
        found = {
            "active": plan.words[plan.starts] != 0,
            "sending": sending,
            "receiving": receiving,
            "unoffered": self._any(places[waits]) & ~sending & ~receiving,
            "send_to": self._least(places[sends], done[sends], peers[sends]),
            "receive_from": self._least(places[receives], received[receives], peers[receives]),
        }
        for name, value in found.items():
            np.copyto(self.seen[name], value, where=sense)

    def _any(self, places: Ints) -> Bools:
        return np.bincount(places, minlength=len(self.seen)) > 0

    def _least(self, places: Ints, progress: Ints, peers: NDArray[np.int32]) -> NDArray[np.int32]:
        """The peer of the least advanced transfer of each list."""
        order = np.lexsort((peers, progress, places))[::-1]
        peer = np.full(len(self.seen), NOBODY, np.int32)
        peer[places[order]] = peers[order]  # of several the last one stays
        return peer

    def _count(self, places: Ints, values: Ints) -> NDArray[np.int8]:
        """Add up what connections have moved; which side each is. Torn values are left out."""
        address, base, posted, received, transmitted, done = values
        names = keys(places, address.view(np.uint64))
        at = self._connect(names)
        sides = self.connections["side"][at]
        sends = sides == _SENDS
        zero = np.zeros_like(base)
        now = np.stack(
            (np.where(sends, posted, received), np.where(sends, transmitted, zero), np.where(sends, done, zero)), 1
        )
        now[:, 0] += base
        now[sends, 1:] += base[sends, None]
        nth = np.full(len(self.connections), NOBODY)
        nth[at] = np.arange(len(at))  # of several subs of one connection the last one stays
        one = np.flatnonzero(nth != NOBODY)
        nth = nth[one]
        now, places, sides_of = now[nth], places[nth], sides[nth]
        before = self.connections["steps"][one]
        grown = np.where(before[:, :1] == _UNSEEN, 0, now - before)
        good = ((grown >= 0) & (grown < _LEAP)).all(1) & (sides_of != _UNREADABLE)
        self.connections["steps"][one[good]] = now[good]
        for name, column, side in _STEPS:
            moved = np.where(good & (sides_of == side), grown[:, column], 0)
            self.seen[name] += np.bincount(places, moved, len(self.seen)).astype(np.int64)
        return sides

    def _connect(self, names: NDArray[np.uint64]) -> Ints:
        """Where those connections stand; what is not yet known of them is asked."""
        known = self.connections["key"]
        at = np.searchsorted(known, names)
        strange = names[np.append(known, np.uint64(_NEVER))[at] != names]
        if not len(strange):
            return at
        fresh = np.zeros(len(np.unique(strange)), _CONNECTION)
        fresh["key"], fresh["steps"] = np.unique(strange), _UNSEEN
        fresh["side"] = [self._side(int(name)) for name in fresh["key"]]
        places = (known >> np.uint64(ADDRESS_BITS)).astype(np.int64)
        full = np.flatnonzero(np.bincount(places, minlength=1) + len(fresh) > _CONNECTIONS)
        kept = ~np.isin(places, full) | np.isin(known, names)
        both = np.concatenate((self.connections[kept], fresh))
        self.connections = both[np.argsort(both["key"])]
        return np.searchsorted(self.connections["key"], names)

    def _side(self, name: int) -> int:
        one = list(self._lists.values())[name >> ADDRESS_BITS]
        word = one.memory.word((name & (1 << ADDRESS_BITS) - 1) + one.form.send, 4)
        return _UNREADABLE if word is None else _SENDS if word else _RECEIVES

    def _arrange(self, lists: Mapping[Place, List]) -> None:
        """Plan how these are read, and keep what is known of those that were read before."""
        plan, before, order, seen = self._plan, self._before, self.order, self.seen
        self._lists = dict(sorted(lists.items()))
        self.order = {place: number for number, place in enumerate(self._lists)}
        self._plan = Plan(list(self._lists.values()))
        self._before = np.full(len(self._plan.words), _NEVER, np.uint64)
        self.seen = np.zeros(len(lists), SEEN)
        moved = np.full(len(order) + 1, NOBODY)
        for place, number in self.order.items():
            old = order.get(place)
            if old is None:
                continue
            moved[old], self.seen[number] = number, seen[old]
            if plan.ranges[old] == self._plan.ranges[number]:
                same = before[plan.starts[old] : plan.ends[old]]
                self._before[self._plan.starts[number] : self._plan.ends[number]] = same
        self._move(moved)

    def _move(self, moved: Ints) -> None:
        """Give connections the numbers that their lists now have; NOBODY: no list any more."""
        bits = np.uint64(ADDRESS_BITS)
        number = moved[(self.connections["key"] >> bits).astype(np.int64)]
        kept = self.connections[number != NOBODY]
        kept["key"] = keys(number[number != NOBODY], kept["key"] & np.uint64((1 << ADDRESS_BITS) - 1))
        self.connections = kept[np.argsort(kept["key"])]
