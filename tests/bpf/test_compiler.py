"""What goes wrong with the compiler is said in one line that names the mend."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types

import pytest

from bpf import compiler
from bpf.loader import BpfError, load
from bpf.tracepoint import PREFIX

STEMS = ("nccl", "scheduler")


class Keeper(dict[str, bytes]):
    """Keeps images in memory."""

    def find(self, key: str) -> bytes | None:
        """What was stored."""
        return self.get(key)

    def keep(self, key: str, data: bytes) -> None:
        """Keep it."""
        self[key] = data


def test_missing_bcc(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without bcc the package to install is named."""
    monkeypatch.setitem(sys.modules, "bcc", None)
    with pytest.raises(RuntimeError, match="apt-get install python3-bpfcc"):
        compiler.build(["nccl"], [])


def test_another_project_called_bcc(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyPI's bcc is recognised as another project."""
    stranger = types.ModuleType("bcc")
    stranger.__file__ = "/somewhere/bcc.py"
    monkeypatch.setitem(sys.modules, "bcc", stranger)
    with pytest.raises(RuntimeError, match=r"/somewhere/bcc\.py is another project.*pip uninstall bcc"):
        compiler.build(["nccl"], [])


def test_source_text_keeps_line_numbers() -> None:
    """Compiler messages point at the file and line that a person edits."""
    lines = compiler.source_text(["cuda"]).decode().splitlines()
    start = lines.index('#line 1 "cuda.bpf.c"') + 1
    own = (compiler.FOLDER / "cuda.bpf.c").read_text().splitlines()
    assert lines[start : start + 6] == own[:6]
    assert lines[start + own.index("static __always_inline int synchronize(void)")] == (
        "static __always_inline int synchronize(void)"
    )


@pytest.mark.bpf
@pytest.mark.parametrize("flags", [[], ["-DPID_NAMESPACE"]])
def test_a_kernel_that_does_not_tell_its_layout(probes_allowed: None, flags: list[str]) -> None:
    """Without BTF there are no programs at tracepoints, with the reason; all others are loaded as ever."""
    script = (
        "import json, pathlib, sys\nfrom bpf import compiler\ncompiler.VMLINUX = pathlib.Path('/nonexistent')\n"
        "print(json.dumps(compiler.build(['nccl', 'cuda', 'scheduler'], sys.argv[1:])))"
    )
    said = subprocess.run([sys.executable, "-c", script, *flags], stdout=subprocess.PIPE, check=True)
    answer = json.loads(said.stdout)
    assert "ncclAllReduce" in answer["programs"]
    assert not any(name.startswith(PREFIX) for name in answer["programs"])
    assert "CONFIG_DEBUG_INFO_BTF" in answer["unknown"]


@pytest.fixture(scope="module")
def first(probes_allowed: None) -> Keeper:
    """The images that a first start caches."""
    keeper = Keeper()
    load(STEMS, keeper).close()
    return keeper


@pytest.fixture
def images(first: Keeper) -> Keeper:
    """The same for one test, which may change it."""
    return Keeper(first)


@pytest.mark.bpf
def test_a_later_start_compiles_nothing(images: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the image that a start has cached the next one loads the same, without bcc."""
    monkeypatch.setattr(sys, "executable", "/nonexistent")
    with pytest.raises(BpfError, match="cannot be started"):
        load(STEMS)
    kernel = load(STEMS, images)
    assert "ncclAllReduce" in kernel.programs
    assert (len(images), kernel.refused, kernel.maps["slots"].capacity) == (1, {}, 4096)
    kernel.close()


@pytest.mark.bpf
@pytest.mark.parametrize("damage", [b"", b"{", b"[3]", b"\xff"])
def test_a_damaged_image_is_made_again(images: Keeper, damage: bytes) -> None:
    """What cannot be read is compiled again, and cached again."""
    (key, whole), *_ = images.items()
    images[key] = damage
    load(STEMS, images).close()
    assert {name: json.loads(image) for name, image in images.items()} == {key: json.loads(whole)}


@pytest.mark.bpf
def test_an_image_is_of_one_kernel(images: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """On another kernel, or with other probes, nothing of it is used."""
    here = os.uname()
    there = types.SimpleNamespace(machine=here.machine, release=here.release, version=f"{here.version} too")
    with monkeypatch.context() as patch:
        patch.setattr(os, "uname", lambda: there)
        load(STEMS, images).close()
    load((*STEMS, "cuda"), images).close()
    assert len(images) == 3


@pytest.mark.bpf
def test_refusal_is_explained(probes_allowed: None) -> None:
    """A program that does not compile is refused with the compiler's own complaint."""
    with pytest.raises(BpfError, match="no_such_probe"):
        load(("no_such_probe",))
