"""The emulated libraries as files: names, symbols, debug information, cache."""

from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from emulator.libraries import build as building
from emulator.libraries.build import BuildError, Libraries, build
from emulator.training.ctypes_api import NVIDIA_ONLY, PROTOTYPES


def symbols(path: Path) -> dict[str, tuple[int, str]]:
    """Address and binding of the dynamic symbols."""
    with path.open("rb") as file:
        table = ELFFile(file).get_section_by_name(".dynsym")
        return {at.name: (at["st_value"], at["st_info"]["bind"]) for at in table.iter_symbols()}


def test_every_declared_function_is_exported(libraries: Libraries) -> None:
    """Each prototype that callers use is a defined symbol of one of the two libraries, or NVIDIA's alone."""
    nccl, cudart = symbols(libraries.nccl), symbols(libraries.cudart)
    assert nccl.keys() & NVIDIA_ONLY == set()
    for name in PROTOTYPES.keys() - NVIDIA_ONLY:
        assert (nccl if name.startswith("nccl") else cudart)[name][0], name


def test_public_nccl_names_are_weak_aliases(libraries: Libraries) -> None:
    """ncclX is a weak alias at the address of pncclX, as in NVIDIA's builds."""
    found = symbols(libraries.nccl)
    public = [name for name in found if name.startswith("nccl")]
    assert len(public) > 30
    for name in public:
        assert found[name] == (found["p" + name][0], "STB_WEAK")
        assert found["p" + name][1] == "STB_GLOBAL"


def test_libraries_carry_names_and_debug_information(libraries: Libraries) -> None:
    """Both have the SONAME of the real ones, a build id, a full symbol table and DWARF."""
    for path in (libraries.nccl, libraries.cudart):
        with path.open("rb") as file:
            elf = ELFFile(file)
            tags = {tag.entry.d_tag: tag for tag in elf.get_section_by_name(".dynamic").iter_tags()}
            assert tags["DT_SONAME"].soname == path.name
            for section in (".symtab", ".debug_info", ".note.gnu.build-id"):
                assert elf.get_section_by_name(section)


def test_cudart_symbols_are_versioned(libraries: Libraries) -> None:
    """cudart's symbols carry the version node that the real library has, and nothing else is exported."""
    with libraries.cudart.open("rb") as file:
        versions = ELFFile(file).get_section_by_name(".gnu.version_d")
        names = {auxiliary.name for _, entries in versions.iter_versions() for auxiliary in entries}
    assert names == {"libcudart.so.12"}
    assert "fabric_open" not in symbols(libraries.cudart)


def test_second_build_compiles_nothing(libraries: Libraries, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the sources unchanged the same files are given back, even when the compiler is gone."""
    monkeypatch.setenv("PATH", "/nowhere")
    before = libraries.nccl.stat()
    again = build(libraries.folder.parent)
    assert again == libraries
    assert again.nccl.stat() == before


def test_missing_compiler_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a compiler the error is one line that says what to install, and nothing is left in the cache."""
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(BuildError, match=r"^no C compiler \(cc\) .* apt-get install gcc.*$"):
        build(tmp_path)
    assert not list(tmp_path.iterdir())


def test_unwritable_cache_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache folder that is a file is refused in one line that names it."""
    (tmp_path / "peerwatch").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert building.cache_folder() == tmp_path / "peerwatch" / "emulator"
    with pytest.raises(BuildError, match=r"can't write .*peerwatch/emulator .*XDG_CACHE_HOME"):
        build()
