"""Reads topology files of every form; the content tells which it is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from analysis.topology import lldp_file, nvidia_smi_file, plain_file, slurm_file
from analysis.topology.places import Link, Topology, topology_of

_LARGEST = 64 << 20


def read_topology(files: Sequence[Path]) -> Topology:
    """Join the files; of a folder, all files in it. LLDP and nvidia-smi files are named by their machine: `m01.json`.

    An nvidia-smi file with a name that no other file knows stands for every machine. Raises ValueError with the file's
    name for a form that is not known, and OSError where a file cannot be read.
    """
    links: list[Link] = []
    nearest: dict[str, dict[str, int]] = {}
    for file in _files(files):
        try:
            if file.stat().st_size > _LARGEST:
                raise ValueError("larger than 64 MiB")
            _read(file, links, nearest)
        except UnicodeDecodeError as error:
            raise ValueError(f"{file}: no text") from error
        except ValueError as error:
            raise ValueError(f"{file}: {error}") from error
    if not links:
        raise ValueError(f"{files[0]}: names no machine on a leaf; see docs/analysis/placement.md for the forms")
    known = {link.machine for link in links}
    return topology_of(links, {name if name in known else "": found for name, found in nearest.items()})


def _files(paths: Sequence[Path]) -> list[Path]:
    return [file for path in paths for file in (sorted(path.iterdir()) if path.is_dir() else [path])]


def _read(file: Path, links: list[Link], nearest: dict[str, dict[str, int]]) -> None:
    text = file.read_text(encoding="utf-8")
    machine = file.name.removesuffix(".json").removesuffix(".txt").removesuffix(".lldp")
    if lldp_file.is_lldp(text):
        links += lldp_file.read_lldp(text, machine)
    elif nvidia_smi_file.is_nvidia_smi(text):
        nearest[machine] = nvidia_smi_file.read_nvidia_smi(text)
    elif slurm_file.is_slurm(text):
        links += slurm_file.read_slurm(text)
    elif plain_file.is_toml(text):
        links += plain_file.read_toml(text)
    elif plain_file.is_csv(text):
        links += plain_file.read_csv(text)
    else:
        raise ValueError("no topology: TOML with [[leaf]], CSV with machine,leaf, topology.conf, lldpcli -f json")
