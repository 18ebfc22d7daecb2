"""What goes wrong with the compiler is said in one line that names the mend."""

from __future__ import annotations

import json
import subprocess
import sys
import types

import pytest

from bpf import compiler
from bpf.loader import BpfError, load
from bpf.tracepoint import PREFIX


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
@pytest.mark.parametrize("flags", [[], ["-DPID_NAMESPACE_INODE=7", "-DPID_NAMESPACE_DEVICE=4"]])
def test_a_kernel_that_does_not_tell_its_layout(probes_allowed: None, flags: list[str]) -> None:
    """Without BTF there are no programs at tracepoints, with the reason; all others are loaded as ever."""
    script = (
        "import json, pathlib, sys\nfrom bpf import compiler\ncompiler.VMLINUX = pathlib.Path('/nonexistent')\n"
        "print(json.dumps(compiler.build(['nccl', 'cuda', 'scheduler'], sys.argv[1:])[0]))"
    )
    said = subprocess.run([sys.executable, "-c", script, *flags], stdout=subprocess.PIPE, check=True)
    answer = json.loads(said.stdout)
    assert "ncclAllReduce" in answer["programs"]
    assert not any(name.startswith(PREFIX) for name in answer["programs"])
    assert "CONFIG_DEBUG_INFO_BTF" in answer["unknown"]


@pytest.mark.bpf
def test_refusal_is_explained(probes_allowed: None) -> None:
    """A program that does not compile is refused with the compiler's own complaint."""
    with pytest.raises(BpfError, match="no_such_probe"):
        load(("no_such_probe",))
