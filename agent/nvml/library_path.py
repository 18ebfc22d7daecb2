"""Where NVIDIA's libraries may lie: the loader's own places, then those of driver containers and cloud images."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

NAME = "libnvidia-ml.so.1"
_CACHE_BYTES = 16 << 20
_OWN = f"lib/{os.uname().machine}-linux-gnu"
_USUAL = (f"usr/{_OWN}", "usr/lib64", "usr/lib", _OWN, "lib64")
_ROOTS = ("run/nvidia/driver", "driver-root", "host")
_ELSEWHERE = ("usr/local/nvidia/lib64", "home/kubernetes/bin/nvidia/lib64", "opt/nvidia/lib64", "usr/lib/wsl/lib")


def find_library(root: Path, environment: Mapping[str, str], name: str = NAME) -> list[str]:
    """Every place where it is, best first; `root` is where the machine's own files are seen."""
    folders = [Path(part) for part in environment.get("LD_LIBRARY_PATH", "").split(":") if part.startswith("/")]
    cached = _cached(Path("/etc/ld.so.cache"), name)
    for top in dict.fromkeys((Path("/"), root)):
        folders += [top / usual for usual in _USUAL] + [top / other for other in _ELSEWHERE]
        folders += [top / driver / usual for driver in _ROOTS for usual in _USUAL]
    places = [str(folder / name) for folder in folders]
    count = environment.get("LD_LIBRARY_PATH", "").count(":") + 1
    ordered = (*places[:count], *cached, *places[count:])
    return [place for place in dict.fromkeys(ordered) if os.path.isfile(place)]


def _cached(path: Path, name: str) -> list[str]:
    in_cache = re.compile(rb"(/[^\0]{1,4000}/" + re.escape(name).encode() + rb")\0")
    try:
        with path.open("rb") as file:
            return [os.fsdecode(found) for found in in_cache.findall(file.read(_CACHE_BYTES))]
    except OSError:
        return []
