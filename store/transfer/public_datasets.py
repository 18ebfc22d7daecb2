"""Public measurements as recordings: what others have labelled, brought into our form to try the detector on.

ASD (InterFusion), JumpStarter set 3 and SMD (OmniAnomaly) as .npz archives, node power of MLPerf training as Parquet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import numpy as np
from numpy.typing import NDArray

from store.recording import RecordingError
from store.schema.time import SECOND

Array = NDArray[Any]
Tables = dict[str, dict[str, Any]]
Found = tuple[str, Tables, dict[str, Any]]
"""Name of a recording, its tables and its labels."""
BEGIN = 1_600_000_000 * SECOND
"""The archives have no times: their first sample is put here."""
SHARED = 0.25
"""Where more than this share of the machines is labelled at once, the group is meant and no machine."""


def read(kind: str, path: Path) -> Iterator[Found]:
    """The recordings that a data set makes. Raises RecordingError in one line."""
    if kind not in KINDS:
        raise RecordingError(f"no data set is called {kind}; there are {', '.join(KINDS)}")
    try:
        yield from KINDS[kind](path)
    except RecordingError:
        raise
    except Exception as error:  # zipfile, numpy and Arrow raise a dozen kinds on bytes that none of them wrote
        why = next(iter(str(error).splitlines()), type(error).__name__)
        raise RecordingError(f"{path} is not as {kind} is published: {why}") from error


def _asd(path: Path) -> Iterator[Found]:
    """Ten days without labels, then three with: the first are not judged."""
    found = _archive(path)
    values = np.concatenate([found["fit"], found["test"]], axis=1)
    label = np.concatenate([np.zeros(found["fit"].shape[:2]), found["label"]], axis=1)
    names = [f"server-{number:02d}" for number in range(len(values))]
    labels = _labels(label, names, 300)
    unlabelled = {"start": BEGIN, "end": BEGIN + found["fit"].shape[1] * 300 * SECOND}
    labels["unjudged"] = [unlabelled, *labels["unjudged"]]
    yield "asd", {"server": _columns(values, names, 300)}, labels


def _jumpstarter(path: Path) -> Iterator[Found]:
    found = _archive(path)
    values, label = found["test"], found["label"]
    names = [f"server-{number:02d}" for number in range(len(values))]
    yield "jumpstarter", {"server": _columns(values, names, 300)}, _labels(label, names, 300)


def _smd(path: Path) -> Iterator[Found]:
    """Machines that are no peers; the series differ in length by some samples, and end together here."""
    found = _archive(path)
    names = sorted(key.split("/")[0] for key in found if key.endswith("/test"))
    steps = min(len(found[f"{name}/test"]) for name in names)
    values = np.stack([found[f"{name}/test"][:steps] for name in names])
    label = np.stack([found[f"{name}/label"][:steps] for name in names])
    names = [f"machine-{name}" for name in names]
    # Among three machines each is more than a share of the group: no label can mean the group.
    yield "smd", {"server": _columns(values, names, 60)}, _labels(label, names, 60, shared=1.0)


def _mlperf_power(path: Path) -> Iterator[Found]:
    """A recording for each run and side of the power supplies; of nodes that share a sensor only the first."""
    import pyarrow.parquet as pq

    if not path.is_file():
        raise RecordingError(f"{path} is not a file; name the data set's .parquet")
    table = pq.read_table(path, partitioning=None)
    columns = {name: np.asarray(table.column(name).to_pylist()) for name in ("run", "side", "node", "sensor_group")}
    columns |= {name: np.asarray(table.column(name), np.int64) for name in ("t_ms", "watts")}
    group = columns["sensor_group"]
    for run, side in sorted(set(zip(columns["run"].tolist(), columns["side"].tolist(), strict=True))):
        here = (columns["run"] == run) & (columns["side"] == side)
        first = [columns["node"][here & (group == one)].min() for one in np.unique(group[here])]
        here &= np.isin(columns["node"], first)
        yield f"{run}-{side}", *_power({name: values[here] for name, values in columns.items()})


def _power(columns: dict[str, Array]) -> tuple[Tables, dict[str, Any]]:
    nodes = np.unique(columns["node"])
    order = np.lexsort((columns["t_ms"], columns["node"]))
    gaps = np.diff(columns["t_ms"][order])[np.diff(columns["node"][order]) == 0]
    rows = {
        "time": columns["t_ms"] * (SECOND // 1000),
        "machine": np.array([f"node-{node:02d}" for node in columns["node"]]),
        "node_power_watts": columns["watts"].astype(np.float64),
    }
    step = float(np.median(gaps)) / 1000 if len(gaps) else None
    return {"power": rows}, {"task": "all", "machines": len(nodes), "step_seconds": step, "faults": []}


KINDS: dict[str, Callable[[Path], Iterator[Found]]] = {
    "asd": _asd,
    "jumpstarter": _jumpstarter,
    "smd": _smd,
    "mlperf_power": _mlperf_power,
}


def _archive(path: Path) -> dict[str, Array]:
    """The arrays of an .npz file; one that holds objects is refused, for reading those could run anything."""
    if not path.is_file():
        raise RecordingError(f"{path} is not a file; name the data set's .npz")
    if not is_zipfile(path):  # numpy would take it for a pickle, or for a single array
        raise RecordingError(f"{path} is no .npz archive; name the data set's .npz")
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def _columns(values: Array, names: list[str], step_s: int) -> dict[str, Any]:
    """Rows of readings [machine, step, metric], the names of which are not published."""
    machines, steps, metrics = values.shape
    time = BEGIN + np.arange(steps, dtype=np.int64) * step_s * SECOND
    rows: dict[str, Any] = {"time": np.repeat(time, machines), "machine": np.tile(np.array(names), steps)}
    for metric in range(metrics):
        rows[f"metric_{metric:02d}"] = values[:, :, metric].T.reshape(-1).astype(np.float64)
    return rows


def _labels(label: Array, names: list[str], step_s: int, shared: float = SHARED) -> dict[str, Any]:
    """Faults from labels [machine, step]; what strikes a share of the machines at once is not judged."""
    group = label.astype(bool).mean(0) > shared
    episodes = [(at, begin, end) for at, row in enumerate(label.astype(bool)) for begin, end in _runs(row)]
    # An episode that meets one of the whole group is part of it, from its first step to its last.
    common = np.zeros(label.shape[1], bool)
    for _, begin, end in episodes:
        if group[begin:end].any():
            common[begin:end] = True
    span = [{"start": _time(begin, step_s), "end": _time(end, step_s)} for begin, end in _runs(common)]
    faults = [
        {"machine": names[at], "device": None, "kind": "labelled", **_from_to(begin, end, step_s)}
        for at, begin, end in episodes
        if not group[begin:end].any() and not common[begin:end].any()
    ]
    faults.sort(key=lambda fault: int(str(fault["start"])))
    return {"task": "all", "machines": len(names), "step_seconds": float(step_s), "faults": faults, "unjudged": span}


def _from_to(begin: int, end: int, step_s: int) -> dict[str, int]:
    return {"start": _time(begin, step_s), "end": _time(end, step_s)}


def _time(step: int, step_s: int) -> int:
    return BEGIN + step * step_s * SECOND


def _runs(on: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Stretches of steps that are on, begin <= step < end."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], on, [False]]).astype(np.int8)))
    return [(int(begin), int(end)) for begin, end in edges.reshape(-1, 2)]
