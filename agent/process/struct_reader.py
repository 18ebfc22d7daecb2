"""Unpacks members of a C structure out of bytes, by the offsets of a layout."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from operator import itemgetter

NO_MEMBER = -1
"""In place of an optional member that the layout lacks."""


class StructReader:
    """Reads members of a structure in a given order, in one step from where the first of them lies.

    Optional members that the layout lacks are NO_MEMBER. Raises struct.error for members that overlap.
    """

    def __init__(self, places: Mapping[str, int], needed: Mapping[str, str], optional: Mapping[str, str]) -> None:
        kinds = {**needed, **{name: kind for name, kind in optional.items() if name in places}}
        order = sorted(kinds, key=lambda name: places[name])
        self.begin = places[order[0]]
        form, at = "<", self.begin
        for name in order:
            form += f"{places[name] - at}x{kinds[name]}"
            at = places[name] + struct.calcsize("<" + kinds[name])
        packed = struct.Struct(form)
        self.size = packed.size
        unpack, sort = packed.unpack_from, itemgetter(*(order.index(name) for name in kinds))
        absent = (NO_MEMBER,) * (len(needed) + len(optional) - len(kinds))
        self.read: Callable[[bytes, int], tuple[int, ...]] = lambda data, at: sort(unpack(data, at)) + absent
        """The members of the structure that has its first wanted member at that place of the data."""
