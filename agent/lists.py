"""Where the lists of transfers of all proxies lie: their nodes come from pools and are found again where they were."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, groupby

import numpy as np
from numpy.typing import NDArray

from agent.layouts import Layout
from agent.memory import Gather, Memory

ADDRESS_BITS = 48
NODES, SUBS = 64, 128
"""Nodes of a list, and subs of a node, that are looked at."""
_KEPT = 32
"""Nodes beyond which those of operations that may be over are forgotten."""
_LIST_BYTES = 2 << 20
"""More than a list can hold: sizes and addresses are another's word, and memory is ours."""
_HOLE = 2048
"""To read so many bytes in vain costs less than to read two ranges."""
_WORD, _HALF = struct.Struct("<Q"), struct.Struct("<i")
_NODE_HALVES = ("nsubs", "state")
_WORDS = ("connection", "base", "posted", "received", "transmitted", "done")
_HALVES = ("nsteps", "peer")
Ints = NDArray[np.int64]
Range = tuple[int, int]
"""Address, or place within a node, and number of bytes."""


@dataclass(frozen=True, slots=True)
class Cut:
    """What is read of a node with so many subs, and where in it things are found, in bytes."""

    ranges: list[Range]
    size: int
    nsubs: int
    state: int
    following: int
    subs: int


class Form:
    """Places within a node (ncclProxyArgs) and its subs (ncclProxySubArgs; NCCL, src/include/proxy.h).

    Raises KeyError or ValueError for a layout that cannot be meant.
    """

    def __init__(self, layout: Layout) -> None:
        self._node, sub = layout["ncclProxyArgs"], layout["ncclProxySubArgs"]
        self._subs, self.stride = self._node["subs"], sub["sizeof"]
        self.send = layout["ncclProxyConnection"]["send"]
        self.members = [sub[name] for name in _WORDS + _HALVES]
        members = [self._node[name] for name in (*_NODE_HALVES, "next")]
        self.begin = min(members) & -8
        self.size = (max(members) + 8 & -8) - self.begin
        words = [self._subs, self.stride, self._node["next"], *self.members[: len(_WORDS)]]
        halves = [*members, *self.members]
        if self.stride <= max(self.members) or any(at % 8 for at in words) or any(at % 4 for at in halves):
            raise ValueError("members do not lie where a compiler would put them")
        self._cuts: dict[int, Cut] = {}

    def cut(self, count: int) -> Cut:
        """What is read of a node with so many subs."""
        if count not in self._cuts:
            node, subs = (self.begin, self.size), (self._subs, count * self.stride)
            first, second = sorted((node, subs))
            ranges = [first, second] if count else [node]
            if count and 0 <= second[0] - sum(first) < _HOLE:
                ranges = [(first[0], sum(second) - first[0])]
            found = (_found(ranges, self._node[name]) for name in (*_NODE_HALVES, "next", "subs"))
            self._cuts[count] = Cut(ranges, sum(length for _, length in ranges), *found)
        return self._cuts[count]

    def read(self, data: bytes) -> tuple[int, int]:
        """Number of subs and address of the next node, from the bytes between `begin` and `size` behind it."""
        (count,) = _HALF.unpack_from(data, self._node["nsubs"] - self.begin)
        (following,) = _WORD.unpack_from(data, self._node["next"] - self.begin)
        return count, following


def _found(ranges: Sequence[Range], member: int) -> int:
    at = 0
    for start, length in ranges:
        if start <= member < start + length:
            return at + member - start
        at += length
    return 0  # the subs of a node without any


class List:
    """The list of one proxy: where it begins, and the nodes it was seen to be made of.

    Raises KeyError or ValueError for a layout that cannot be meant.
    """

    def __init__(self, memory: Memory, head: int, layout: Layout) -> None:
        self.memory, self.head, self.form = memory, head, Form(layout)
        if head % 8:
            raise ValueError("the list does not begin where a compiler would put it")
        self.nodes: dict[int, int] = {}
        """How many subs of a node are read, by its address."""

    def learn(self, address: int) -> bool:
        """Walk on from there, up to a node that is known; whether that changed what is known."""
        changed = len(self.nodes) >= _KEPT
        if changed:
            self.nodes.clear()
            address = self.memory.word(self.head) or 0
        form, room = self.form, _LIST_BYTES - sum(self.form.cut(count).size for count in self.nodes.values())
        while address and len(self.nodes) < NODES:
            data = self.memory.read(address + form.begin, form.size) if form.size <= room else None
            if data is None or address % 8:
                break
            count, following = form.read(data)
            room -= form.size + count * form.stride
            if not 0 <= count <= SUBS or room < 0:
                break
            self.nodes[address] = max(count, self.nodes.get(address, 0))
            changed, address = True, 0 if following in self.nodes else following
        return changed

    def ranges(self) -> list[Range]:
        """What is read of it: its head, then node by node."""
        nodes = ((address, self.form.cut(count).ranges) for address, count in self.nodes.items())
        return [(self.head, 8), *((address + start, length) for address, cut in nodes for start, length in cut)]


class Plan:
    """Which word of one buffer is what: lists in their order, their nodes and subs as arrays of places in it.

    Lists of one process must be neighbours.
    """

    def __init__(self, lists: Sequence[List]) -> None:
        self._lists = lists
        self.ranges = [one.ranges() for one in lists]
        sizes = np.array([sum(length for _, length in ranges) // 8 for ranges in self.ranges], np.int64)
        self.ends = np.cumsum(sizes)
        self.starts: Ints = self.ends - sizes
        """The first word of each list is its head."""
        self.words = np.zeros(int(sizes.sum()), np.uint64)
        self.halves = self.words.view(np.int32)
        neighbours = groupby(range(len(lists)), lambda place: lists[place].memory.pid)
        self._gathers = [(places := list(group), self._gather(places)) for _, group in neighbours]
        self._number_nodes()
        self._number_subs()

    def read(self) -> NDArray[np.bool_]:
        """Read all again; of each list, whether it could be."""
        whole = np.ones(len(self._lists), np.bool_)
        for places, gather in self._gathers:
            if not gather.read():
                for place in places:
                    whole[place] = self._gather([place]).read()
        return whole

    def find(self, places: Ints, addresses: NDArray[np.uint64]) -> Ints:
        """Numbers of the nodes of these lists at these addresses; -1 for no address, -2 for one that is not known."""
        wanted = keys(places, addresses)
        nearest = np.searchsorted(self._keys[:-1], wanted)
        known = (addresses >> np.uint64(ADDRESS_BITS) == 0) & (self._keys[nearest] == wanted)
        return np.where(known, self._numbers[nearest], np.where(addresses == 0, -1, -2))

    def _gather(self, places: Sequence[int]) -> Gather:
        """Of lists that are neighbours."""
        ranges = list(chain.from_iterable(self.ranges[place] for place in places))
        part = self.words[self.starts[places[0]] : self.ends[places[-1]]]
        return Gather(self._lists[places[0]].memory.pid, ranges, part)

    def _number_nodes(self) -> None:
        """Note where in the buffer the members of all nodes are, as words (`followings`) or half words."""
        nodes: list[tuple[int, ...]] = []
        for place, one in enumerate(self._lists):
            at = int(self.starts[place]) * 8 + 8
            for address, count in one.nodes.items():
                cut = one.form.cut(count)
                members = (at + cut.nsubs) // 4, (at + cut.state) // 4, (at + cut.following) // 8
                nodes.append((place, address, count, *members, at + cut.subs))
                at += cut.size
        table = np.array(nodes, np.int64).reshape(-1, 7).T
        self.places, self.addresses, self.counts, self.nsubs, self.states, self.followings, self._subs = table
        names = keys(self.places, self.addresses.astype(np.uint64))
        order = np.argsort(names)
        # One more, which is nobody's: there always is one that is not smaller.
        self._keys = np.append(names[order], np.uint64((1 << 64) - 1))
        self._numbers = np.append(order, -2)

    def _number_subs(self) -> None:
        """Note where in the buffer the members of all subs are, and which sub of which node it is."""
        self.nodes_of = np.repeat(np.arange(len(self.counts)), self.counts)
        self.nths = np.arange(len(self.nodes_of)) - np.repeat(np.cumsum(self.counts) - self.counts, self.counts)
        forms = [(one.form.stride, *one.form.members) for one in self._lists]
        strides, *members = np.array(forms, np.int64).reshape(-1, 1 + len(_WORDS + _HALVES)).T
        whose = self.places[self.nodes_of]
        begun = self._subs[self.nodes_of] + self.nths * strides[whose]
        self.members = np.array([begun + member[whose] for member in members[: len(_WORDS)]]) // 8
        """Words: connection, base, posted, received, transmitted, done of each sub."""
        self.member_halves = np.array([begun + member[whose] for member in members[len(_WORDS) :]]) // 4
        """Half words: nsteps, peer of each sub."""


def keys(places: Ints, addresses: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """What tells equal addresses of different lists apart."""
    return places.astype(np.uint64) << np.uint64(ADDRESS_BITS) | addresses
