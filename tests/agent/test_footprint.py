"""The agent's processes load only the libraries that they need."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import agent
from agent.config import SOURCES

ROOT = Path(agent.__file__).parent
LIBRARIES = {"certifi", "msgspec", "numpy", "psutil", "sitecustomize", "typing_extensions", "urllib3"}
"""What an agent with every source may load; certifi and sitecustomize come with some computers' Python."""
ANYWHERE = {"certifi", "sitecustomize"}
RESIDENT_KB = 50_000
SCRIPT = """
import importlib, json, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
known = {*sys.stdlib_module_names, "agent", "bpf", "store"}
loaded = {name.split(".")[0] for name in sys.modules} - known
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps([sorted(name for name in loaded if name[0] != "_"), int(status["VmRSS"].split()[0])]))
"""


def imported(*modules: str) -> tuple[set[str], int]:
    """The foreign packages that a fresh interpreter holds after importing these modules, and its size in kB."""
    command = [sys.executable, "-I", "-c", SCRIPT, *modules]
    loaded, resident = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return set(loaded), resident


def test_packages_load_nothing() -> None:
    """No `__init__.py` of the agent or the probes imports a foreign library, or code at all but for the top one."""
    folders = [path.parent for package in ("agent", "bpf") for path in (ROOT.parent / package).rglob("__init__.py")]
    assert len(folders) > 10
    assert [folder for folder in folders if folder != ROOT and (folder / "__init__.py").read_text().strip()] == []
    assert imported(*(".".join(folder.relative_to(ROOT.parent).parts) for folder in folders))[0] <= ANYWHERE


def test_the_running_agent_is_small() -> None:
    """With every source imported the agent holds numpy for the kernel's arrays, no Arrow, and stays below 50 MB."""
    loaded, resident = imported("agent.__main__", *(f"agent.sources.{name}" for name in SOURCES))
    assert "numpy" in loaded
    assert loaded <= LIBRARIES
    assert resident < RESIDENT_KB


@pytest.mark.parametrize("worker", ["nvml.worker", "stacks.worker", "nccl.ras.worker"])
def test_lasting_children_hold_no_numpy(worker: str) -> None:
    """The children that read GPUs, stacks and NCCL's status are small too."""
    loaded, resident = imported(f"agent.{worker}")
    assert loaded <= {*ANYWHERE, "pynvml"}
    assert resident < RESIDENT_KB // 2
