"""Section headers and symbol tables, read in place."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from agent.binaries.elf_worker import answers
from agent.binaries.opened_file import open_library
from emulator.libraries.build import Libraries

HEADERS_AT, COUNT_AT, SIZE_AT = 40, 60, 32  # e_shoff and e_shnum in Elf64_Ehdr, sh_size in Elf64_Shdr


def changed(path: Path, original: bytes, count: int, first: int) -> dict[str, object]:
    """What is answered of a library with that count of sections in its header, and in its first section's size."""
    data = bytearray(original)
    (headers,) = struct.unpack_from("<Q", data, HEADERS_AT)
    struct.pack_into("<H", data, COUNT_AT, count)
    struct.pack_into("<Q", data, headers + SIZE_AT, first)
    path.write_bytes(data)
    return next(answers(open_library([str(path)]), ["cudaMalloc"], ""))


def test_a_file_of_many_sections_has_their_number_in_the_first(emulated: Libraries, tmp_path: Path) -> None:
    """From 65,280 sections on the header says 0, and the first section's size is their number (elf(5), e_shnum)."""
    original = emulated.cudart.read_bytes()
    (count,) = struct.unpack_from("<H", original, COUNT_AT)
    plain = changed(tmp_path / "plain", original, count, 0)
    assert plain["functions"] == changed(tmp_path / "many", original, 0, count)["functions"] != {}


@pytest.mark.parametrize(("count", "first"), [(65_279, 0), (0, 1 << 58)])
def test_section_headers_beyond_the_end_are_an_error(
    emulated: Libraries, tmp_path: Path, count: int, first: int
) -> None:
    """A file that claims more sections than it can hold says so."""
    found = changed(tmp_path / "file", emulated.cudart.read_bytes(), count, first)
    assert "the section headers reach beyond the end of the file" in str(found["error"])
