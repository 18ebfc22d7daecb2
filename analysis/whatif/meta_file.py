"""The description of a job beside its trace: how many data, pipeline and tensor ranks it has."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class JobMeta:
    """Name and size of a job; 0: not known."""

    name: str = ""
    gpus: int = 0
    dp: int = 0
    pp: int = 0


def beside(trace: Path) -> Path | None:
    """The description of this trace, if it lies beside it: `meta-NAME.yaml` for `trace-NAME.parquet`."""
    stem = trace.name.split(".")[0]
    names = (f"{stem.replace('trace', 'meta', 1)}{ending}" for ending in (".yaml", ".yml") if "trace" in stem)
    return next((trace.with_name(name) for name in names if trace.with_name(name).is_file()), None)


def read_meta(file: Path) -> JobMeta:
    """Read `key: value` lines: trial_name, world_size, dp_size, pp_size, tp_size, dsp_size.

    Raises ValueError for a file that is no such description, or a size that is no positive whole number.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: no text; --meta takes the job's YAML description") from error
    lines = (line.split("#")[0].partition(":") for line in text.splitlines())
    found = {key.strip(): value.strip().strip("\"'") for key, sign, value in lines if sign}
    sizes = {key: _size(file, key, found[key]) for key in found if key.endswith("_size")}
    if not sizes:
        raise ValueError(f"{file}: names no size; --meta takes a file with lines such as world_size: 8")
    dp, pp = sizes.get("dp_size", 0), sizes.get("pp_size", 0)
    world = dp * pp * sizes.get("tp_size", 1) * sizes.get("dsp_size", 1)
    return JobMeta(found.get("trial_name", ""), sizes.get("world_size", world), dp, pp)


def _size(file: Path, key: str, value: str) -> int:
    if not value.isascii() or not value.isdigit() or not 0 < int(value) < 10**8:
        raise ValueError(f"{file}: {key} is {value!r}; a whole number above 0 is needed")
    return int(value)
