"""The child process that reads libraries: offsets of functions, and the layout of NCCL's structures.

The files belong to other users. So the child has bounds on time and memory, prints one answer a line, and what a file
holds cannot harm the agent.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import re
import resource
import sys
import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

from agent.binaries.dwarf_layout import find_layout
from agent.binaries.first_instruction import stepped_of
from agent.binaries.mapped_elf import DYNAMIC, FUNCTION, STATIC, VARIABLE, MappedElf
from agent.binaries.opened_file import Opened, open_library
from agent.binaries.struct_layouts import Layout, LayoutCache, shipped
from agent.binaries.usdt import BASE, NOTES, NOTES_BYTES, parse_notes
from agent.system.rights import give_up, yield_to_others

_EXECUTABLE = 1  # PF_X
_PAGE = 4096
CPU_SECONDS, FIRST_SECONDS = 10, 4  # for each file, and for its functions alone
BATCH_SECONDS, LONGEST_SECONDS, BATCH_FILES = 2.0, 8.0, 512
"""Processor time, time and files after which it begins with no other file: there may be more urgent ones by now."""
MEMORY_BYTES = 8 << 30
"""Of addresses: a library is mapped whole, and NVIDIA's is half a gigabyte."""
DATA_BYTES = 384 << 20  # of memory: what the debug information of a library may unfold to
_MATCHES, _CLONES = 4096, 64
"""Of one function: how many occurrences of its name are read, and how many forms of it; as many trace points."""


def find_functions(elf: MappedElf, wanted: list[str], types: tuple[int, ...] = (DYNAMIC, STATIC)) -> dict[str, int]:
    """File offsets of those of the wanted functions that this file defines."""
    found: dict[str, int] = {}
    for names, table in elf.tables(wanted, FUNCTION, types):
        for name in names:
            if name not in found and (symbol := table.find(name)) is not None:
                offsets = list(elf.parsed.address_offsets(int(symbol["value"])))
                if offsets:
                    found[name] = offsets[0]
    return found


def find_variable(elf: MappedElf, name: str) -> tuple[int, int] | None:
    """Where a variable lies, in bytes from the beginning of the executable mapping, and its size."""
    for _, table in elf.tables([name], VARIABLE, (DYNAMIC, STATIC)):
        symbol = table.find(name)
        for segment in elf.parsed.iter_segments("PT_LOAD") if symbol is not None else ():
            if segment["p_flags"] & _EXECUTABLE:
                return int(symbol["value"]) - segment["p_vaddr"] // _PAGE * _PAGE, int(symbol["size"])
    return None


def without_private_runtime(elf: MappedElf, functions: dict[str, int]) -> dict[str, int]:
    """Without the CUDA runtime that NVIDIA's libnccl carries for itself: NCCL calls it, no program does."""
    if not functions:
        return functions
    public = find_functions(elf, list(functions), (DYNAMIC,))
    if not any(name.startswith("nccl") for name in public):
        return functions
    return {name: at for name, at in functions.items() if name in public or not name.startswith("cuda")}


def find_clones(elf: MappedElf, name: str) -> dict[str, int]:
    """File offsets of a function that is found under its own name, or as what a compiler made of it.

    A static function may lose arguments or be specialized, and is called `name.isra.0` or `name.constprop.1` then
    (GCC's ipa-clones; Clang's ThinLTO writes `.llvm.` and a number). Its pieces (`.part`, `.cold`) are not meant.
    """
    pattern = re.compile(re.escape(name.encode()) + rb"(?:\.(?:isra|constprop|lto_priv|llvm)\.[0-9]{1,20}){0,4}(?=\0)")
    names = {match[0].decode() for match in islice(pattern.finditer(elf.data), _MATCHES)}
    return find_functions(elf, sorted(names)[:_CLONES])


def find_trace_points(elf: Any, names: list[str]) -> tuple[dict[str, int], dict[str, int]]:
    """File offsets of the named trace points' places and of their semaphores: `name`, `name#1`, `name#2` and so on."""
    places: dict[str, int] = {}
    semaphores: dict[str, int] = {}
    notes, base = elf.get_section_by_name(NOTES), elf.get_section_by_name(BASE)
    if notes is None or notes["sh_size"] > NOTES_BYTES:
        return places, semaphores
    for point in parse_notes(notes.data()):
        moved = base["sh_addr"] - point.base if base is not None else 0
        offsets = list(elf.address_offsets(point.location + moved))
        if point.name not in names or not offsets:
            continue
        if len(places) > _CLONES:
            break
        same = sum(known.split("#")[0] == point.name for known in places)
        key = f"{point.name}#{same}" if same else point.name
        places[key] = offsets[0]
        held = list(elf.address_offsets(point.semaphore + moved)) if point.semaphore else []
        if held:
            semaphores[key] = held[0]
    return places, semaphores


def find(elf: MappedElf, wanted: list[str]) -> dict[str, dict[str, Any]]:
    """Where functions are, functions with clones (`name*`), trace points (`provider:name`) and variables (`&name`)."""
    functions = find_functions(elf, [name for name in wanted if name.isidentifier()])
    functions = without_private_runtime(elf, functions)
    for name in wanted:
        if name.endswith("*"):
            functions |= find_clones(elf, name[:-1])
    points = [name for name in wanted if ":" in name]
    places, semaphores = find_trace_points(elf.parsed, points) if points else ({}, {})
    variables = {name[1:]: find_variable(elf, name[1:]) for name in wanted if name[0] == "&"}
    known = {name: place for name, place in variables.items() if place is not None}
    return {"functions": functions | places, "semaphores": semaphores, "variables": known}


def find_build_id(elf: Any) -> str:
    """The build id in hex digits; empty where the linker left none."""
    section = elf.get_section_by_name(".note.gnu.build-id")
    if section is None or section["sh_size"] > _PAGE:
        return ""
    notes = [note["n_desc"] for note in section.iter_notes() if note["n_type"] == "NT_GNU_BUILD_ID"]
    return notes[0] if notes and re.fullmatch(r"[0-9a-f]{16,128}", notes[0]) else ""


def layout_of(elf: Any, status: os.stat_result, name: str) -> Layout | None:
    """The layout as shipped or cached for this build, else from debug information: then it is cached.

    Any user may give a file any build id: only what root owns shares its layout with files of the same build.
    """
    build = find_build_id(elf)
    known = shipped(build)
    if known is not None or not build:
        return known or find_layout(elf)
    key = build if status.st_uid == 0 else f"{build} {name}"
    known = LayoutCache().find(key)
    if known is None and (known := find_layout(elf)):
        LayoutCache().keep(key, known)
    return known


def examine(opened: Opened, wanted: list[str], layout_for: str) -> Iterator[dict[str, Any]]:
    """What one file holds: identity and functions at once, then the layout where it defines `layout_for`.

    Raises what the parsers raise for a file that is no library.
    """
    answer: dict[str, Any] = {"inode": opened.status.st_ino, "identity": opened.identity, "path": opened.path}
    if opened.file is None:
        yield answer | {"functions": {}, "done": True}
        return
    with opened.file as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if not MappedElf.fits(data):
            yield answer | {"functions": {}, "done": True}
            return
        elf = MappedElf(file, data)
        found = find(elf, wanted)
        more = layout_for in found["functions"]
        stepped = stepped_of(data, found["functions"].values())  # type: ignore[arg-type]
        yield answer | found | {"stepped": stepped, "done": not more}
        if more:
            yield {"layout": layout_of(elf.parsed, opened.status, opened.identity), "done": True}


def answers(opened: Opened | OSError, wanted: list[str], layout_for: str) -> Iterator[dict[str, Any]]:
    """The answers about one file; the last one says `done`."""
    if isinstance(opened, OSError):
        yield {"gone": opened.strerror or str(opened), "done": True}
        return
    try:
        yield from examine(opened, wanted, layout_for)
    except OSError as error:
        yield {"gone": error.strerror or str(error), "done": True}
    except Exception as error:  # whatever a damaged or hostile file makes the parsers raise: it is not readable
        yield {"error": f"not a readable library ({type(error).__name__}: {error})"[:200], "done": True}


def _open_all(files: list[list[str]]) -> list[Opened | OSError]:
    """The files, as many as this process may open, telling of each before it is opened: that may never return."""
    opened: list[Opened | OSError] = []
    for number, paths in enumerate(files[:BATCH_FILES]):
        print(json.dumps({"opening": number}), flush=True)
        one = open_library(paths)
        if isinstance(one, OSError) and one.errno == errno.EMFILE and opened:
            break
        opened.append(one)
    print(json.dumps({"opening": None}), flush=True)
    return opened


def table(paths: list[str]) -> dict[str, dict[str, Any]]:
    """What layouts.json holds of these libraries: by build id what they call themselves, and the layout."""
    found = {}
    for path in paths:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            elf = MappedElf(file, data).parsed
            version = re.search(rb"NCCL version ([0-9][ -~]{1,60})", data)
            layout = find_layout(elf)
            if layout:
                found[find_build_id(elf)] = {"version": version[1].decode() if version else "", "layout": layout}
    return found


def main() -> None:
    """Answer one request from standard input, one JSON line an answer; with libraries as arguments print their layouts.

    The files are opened first, then all rights are given up: what a file holds is read without them.
    """
    if sys.argv[1:]:
        print(json.dumps(table(sys.argv[1:]), indent=1))
        return
    yield_to_others(10)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_DATA, (DATA_BYTES, DATA_BYTES))
    request = json.load(sys.stdin)
    opened = _open_all(request["files"])
    give_up()
    begin, deadline = time.process_time(), time.monotonic() + LONGEST_SECONDS
    for one in opened:
        if time.process_time() - begin > BATCH_SECONDS or time.monotonic() > deadline:
            return
        _limit(FIRST_SECONDS)
        before = time.process_time()
        for answer in answers(one, request["wanted"], request["layout_for"]):
            now = time.process_time()
            print(json.dumps(answer | {"seconds": round(now - before, 6)}), flush=True)
            before = now
            _limit(CPU_SECONDS)


def _limit(seconds: int) -> None:
    """Have the kernel end this process after so much more processor time."""
    limit = int(time.process_time()) + 1 + seconds
    resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))


if __name__ == "__main__":
    main()
