"""The layout of NCCL's structures, from the debug information (DWARF) of a library."""

from __future__ import annotations

import os
from typing import Any

from agent.binaries.struct_layouts import OPTIONAL, STRUCTURES, Layout, is_plausible, is_whole, wanted_of

_LIKELY_UNITS = ("proxy.cc", "nccl_proxy.c", "init.cc", "nccl.c", "net.cc")
"""Compilation units that define the structures in most versions: they are read first."""


def find_layout(elf: Any) -> Layout | None:
    """Byte offsets of the members that are read from outside, and sizes; None where not all are there."""
    if not elf.has_dwarf_info():
        return None
    dwarf = elf.get_dwarf_info(relocate_dwarf_sections=False)
    units = []
    for unit in dwarf.iter_CUs():
        name = unit.get_top_DIE().attributes.get("DW_AT_name")
        path = os.path.basename(name.value.decode(errors="replace")) if name else ""
        units.append((_LIKELY_UNITS.index(path) if path in _LIKELY_UNITS else len(_LIKELY_UNITS), unit))
    layout: Layout = {}
    wanted = {*STRUCTURES, *OPTIONAL}
    for _, unit in sorted(units, key=lambda pair: pair[0]):
        for die in unit.get_top_DIE().iter_children():
            _learn(die, layout)
        if wanted <= layout.keys():
            break
    return layout if is_whole(layout) else None


def _learn(die: Any, layout: Layout) -> None:
    if die.tag != "DW_TAG_structure_type" or "DW_AT_declaration" in die.attributes:
        return
    name = die.attributes["DW_AT_name"].value.decode(errors="replace") if "DW_AT_name" in die.attributes else ""
    wanted = wanted_of(name)
    if not wanted or name in layout:
        return
    members = {"sizeof": int(die.attributes["DW_AT_byte_size"].value)}
    for member in die.iter_children():
        label = member.attributes.get("DW_AT_name")
        place = member.attributes.get("DW_AT_data_member_location")
        if member.tag == "DW_TAG_member" and label and place and label.value.decode(errors="replace") in wanted:
            members[label.value.decode()] = int(place.value)
    if is_plausible(name, members):
        layout[name] = members
